"""Serving overhead besides the model: one agent beside other Python servers, with one load generator for all."""
