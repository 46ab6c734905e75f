"""The protocols of HushRec: values in, new values out; no HTTP, no database, no clock, no global randomness."""
