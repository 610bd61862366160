"""The console command, and what surrounds a run that it starts."""
