"""Commands that serve and measure a plan: up, apply, infer, bench, report, down, top, certs, token, gateway."""
