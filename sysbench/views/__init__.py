"""What a person sees: the dashboard while a run goes on, and tables when it is done. Without torch."""
