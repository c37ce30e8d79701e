"""Publishing: answers become messages, messages leave through bounded outboxes."""
