"""What an event is, where it is kept, and how it comes in."""
