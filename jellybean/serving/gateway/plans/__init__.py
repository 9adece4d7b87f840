"""Plans that a gateway serves: workers, open routes, messages to them, replacement and cost."""
