"""Tensors: conversion between wire format and numpy, stacking into batches, and splitting."""
