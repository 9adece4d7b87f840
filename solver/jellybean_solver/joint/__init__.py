"""Rows that joint programs of selection and assignment share."""
