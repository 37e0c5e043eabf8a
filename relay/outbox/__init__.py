"""What an outbox row is and how it becomes an event; and what an application calls to write one."""
