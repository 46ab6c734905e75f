"""Taking part in a task: rounds, masked rounds, the keyring, enrolment, the ledger and events."""
