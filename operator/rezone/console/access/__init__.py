"""Who may ask the console for anything: its one user, or whom a proxy has signed in."""
