"""Pareto frontier of cost and accuracy, and cost by request rate: data, table and picture."""

from jellybean.frontier.find import Frontier, find_frontier, save_plans
from jellybean.frontier.panel import NARROW, WIDE
from jellybean.frontier.plot import save_plot
from jellybean.frontier.view import frontier_text, to_json

__all__ = ["NARROW", "WIDE", "Frontier", "find_frontier", "frontier_text", "save_plans", "save_plot", "to_json"]
