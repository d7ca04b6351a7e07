"""What a person calls by name: one module a command, with a `main(arguments)`."""
