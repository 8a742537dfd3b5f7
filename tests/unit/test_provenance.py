"""A result says where it came from."""

from datetime import UTC, datetime

from practicum.runs.provenance import provenance


def test_a_result_names_its_machine_versions_and_times():
    found = provenance(datetime(2026, 1, 1, tzinfo=UTC))
    assert found["machine"]["cores"] >= 1 and found["machine"]["processor"]
    assert found["versions"]["numpy"]
    assert found["began"] == "2026-01-01T00:00:00+00:00" < found["ended"]
    assert len(found["commit"].rstrip("+")) in (0, 40)
