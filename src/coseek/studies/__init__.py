"""Studies: the papers' tables, figures and claims as files of commands, run, compared and judged.

A study is one YAML file (`study.py`): what a paper says and where, the commands whose results are compared, and
what is expected of them (`verdict.py`). `roads.yaml` says what the same words mean on a laptop and at paper size.
"""
