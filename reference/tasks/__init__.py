"""Generators and graders of small reasoning tasks."""
