"""Where the reference server (chidori cell-store 3.8.1) differs from this contract.

Every entry is an improvement on purpose, and each is checked: the test must fail there.
"""

from __future__ import annotations

_BAD_SEQS = (
    "float-seq",
    "exponent-seq",
    "negative-seq",
    "minus-zero-seq",
    "string-seq",
    "boolean-seq",
    "null-seq",
    "too-large-seq",
    "far-too-large-seq",
    "no-seq",
    "other-case",
    "array",
    "number",
    "string",
    "null",
)

# The reason, and the tests that show it: by name, or by name and parameter.
_BY_REASON: dict[str, list[str]] = {
    "a bad seq is answered 500 there and lists the run all the same": [
        *(f"test_bad_records_are_refused[{name}]" for name in _BAD_SEQS),
        *(f"test_journals_with_a_bad_record_are_refused[{name}]" for name in _BAD_SEQS),
        "test_bad_journals_are_refused[[{}]]",
    ],
    "a seq repeated in a journal is answered 500 there": [
        "test_a_journal_with_a_repeated_seq_changes_nothing",
    ],
    "records come back there with sorted keys and re-spelled numbers": [
        "test_records_keep_the_text_that_was_sent",
    ],
    "a record that its journal is too deep to be read with is stored there": [
        "test_bad_records_are_refused[depth-127]",
    ],
    "blobs come without an entity tag there": [
        "test_a_blob_has_the_digest_of_its_bytes_as_entity_tag",
    ],
    "keys of any length are taken there": ["test_too_long_a_key"],
    "a refused write lists the run there": [
        "test_a_lost_swap_does_not_create_a_run",
        "test_any_tag_matches_what_exists",
    ],
    "only a single entity tag is understood there": ["test_lists_of_tags"],
    "anything is taken as a registry entry there, and breaks the list for all": [
        "test_bad_entries_are_refused[]",
        "test_bad_entries_are_refused[{]",
        "test_bad_entries_are_refused[NaN]",
        'test_bad_entries_are_refused["\\ud800"]',
        "test_bad_entries_are_refused[1 2]",
    ],
    "an empty registry name is no path there": ["test_bad_registry_names[]"],
    "bodies over 2 MiB are refused there": [
        "test_a_20_mib_blob",
        "test_a_journal_of_20_000_records",
    ],
    "answers are never compressed there": [
        "test_long_answers_are_compressed_for_those_who_accept_it",
    ],
}

DIFFERENCES: dict[str, str] = {
    name: reason for reason, names in _BY_REASON.items() for name in names
}
