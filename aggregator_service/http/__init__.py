"""Every request before its route: authentication, body limits, direct bodies, headers, digests, etags."""
