"""Studies: the papers' tables, figures and claims as files of commands, run, compared and judged.

A study is one YAML file (`study.py`): a paper's claim and its place, the commands whose results are compared, and the
expected outcome (`verdict.py`). `roads.yaml` defines the common words of the studies, on a laptop and at paper size.
"""
