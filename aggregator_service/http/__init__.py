"""HTTP, before a route handles a request: authentication, body limits, direct bodies, headers, digests, ETags."""
