"""Attacks on the final models of the planned study: does replay change what survives?"""
