"""The sides of `bench/gpt.py`: trainings in processes of their own, which take turns."""
