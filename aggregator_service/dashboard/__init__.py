"""The dashboard: server-rendered pages for operators, with live updates and a few actions."""
