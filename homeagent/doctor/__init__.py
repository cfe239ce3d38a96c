"""``homeagent doctor``: what is wrong with this installation, and what to do about it."""

from homeagent.doctor.check import FAIL, OK, WARN, Check
from homeagent.doctor.examine import examine

__all__ = ["FAIL", "OK", "WARN", "Check", "examine"]
