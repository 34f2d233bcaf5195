"""Confidence-scheduled verification: how many drafted tokens a step verifies, and what that is worth.

A drafter gives every draft a *rate*: the probability that it and all drafts before it will be accepted.  A row
that verifies a draft costs time and yields its rate in tokens, so the worth of a step is its expected tokens
over its time.  Two decisions are made for a step N, and both only see what may be seen:

    budget   rows of all decoding requests together; on the host, from rates of step N-2 and older
             (`history.RateHistory`, `budget.choose_rows`, with the times of `curve.CostCurve`)
    split    whose drafts get the rows; on the device, from the rates of step N-1, which are those of the very
             drafts that step N verifies (`budget.split_rows` is the rule in numpy)

Whether a draft is verified then never depends on confidences that came after it was drawn, which would change
the law of the text.

    budget.py       the choice of the budget, its objectives, and the split
    history.py      what the rates of the next drafts may be, from those before
    verify.py       both behind one call of the scheduler
    curve.py        seconds of a step by rows: measured, then corrected while running
    curve_cache.py  measured curves on disk
    stats.py        counters of drafts and of how well confidences are calibrated
    alarms.py       log lines when drafts are hardly accepted or confidences are wrong
    simulate.py     what the scheduling loses against knowing the rates in advance

All of it is numpy on small arrays; nothing here touches a device.
"""
