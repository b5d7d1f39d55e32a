"""Recorded attention, replayed under any method; the memory and time that a method would need."""
