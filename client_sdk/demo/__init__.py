"""The main job, end to end: a server process, a fleet of clients, four ways of training, one report."""
