#!/bin/sh
# The report's test opens the page in a headless browser. Install one where that takes no questions; else the test skips.
for browser in chromium chromium-browser google-chrome; do
  if command -v "$browser" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing chromium for the report's browser test"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1 \
    || echo "chromium could not be installed: the browser test will skip"
else
  echo "no headless browser here (chromium): the browser test will skip"
fi
