"""A result says where it came from."""

from practicum.runs.provenance import now, provenance


def test_a_result_names_its_commit_machine_versions_and_time():
    found = provenance()
    assert found["machine"]["cores"] >= 1 and found["machine"]["processor"]
    assert found["versions"]["numpy"]
    assert found["began"] <= now() and found["began"].endswith("+00:00")
    assert len(found["commit"].rstrip("+")) in (0, 40)
