"""A result says where it came from."""

from pathlib import Path

from practicum.runs.provenance import now, provenance


def test_a_result_names_its_commit_machine_versions_and_time():
    found = provenance()
    assert found["machine"]["cores"] >= 1 and found["machine"]["processor"]
    assert found["versions"]["numpy"]
    assert found["began"] <= now() and found["began"].endswith("+00:00")
    in_checkout = (Path(__file__).parents[2] / ".git").exists()
    assert len(found["commit"].rstrip("+")) == (40 if in_checkout else 0)
