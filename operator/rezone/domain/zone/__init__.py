"""Decisions about a whole zone: its data nodes, triggers, next plan and status."""
