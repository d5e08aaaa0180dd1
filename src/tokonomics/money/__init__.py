"""Compute what serving costs: the cost equation, cost trees and load profiles."""
