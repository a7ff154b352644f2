"""The console's pages, session and forms, through the whole application."""
