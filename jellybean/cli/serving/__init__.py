"""Commands that serve and measure: up, infer, top, bench, report, gateway, certs."""
