"""Tests of s2pubsub, and the servers and faults that they share."""
