"""HTTP, before a route handles a request: authentication, body limits, headers, digests, ETags."""
