"""Which tests notice that a check is gone: those beside the behaviour that it keeps, the quickest that do.

For a check that is marked in several places, all tests together have to notice each place. Tests that run on several
databases run on SQLite here. Those in :data:`ON_SPARK` need the Spark server.
"""

from __future__ import annotations

from collections.abc import Mapping

_META, _TABLES, _SHOP, _SPARK = "tests/metaservice/", "tests/tables/", "tests/coordinator/", "tests/spark/"
_CATALOGS = "tests/catalogs/"
_READING, _LEASES, _EXPIRING = (f"{_META}test_{name}.py::" for name in ("resolving", "leases", "expiring"))
_EXCLUDED = (f"{_LEASES}test_who_leases_and_who_takes_away_ask_for_locks_that_exclude_each_other",)
_FORGED = f"{_SHOP}test_forged_records.py::"
_HANDED = "tests/handover/test_closing.py::"
_TOLD = f"{_HANDED}test_the_tables_tell_what_an_unchanged_job_staged"
_LOST, _FOREIGN = "tests/recovery/test_recovery.py", "tests/foreign/test_resolve.py"
_LOST_REVISION = "tests/recovery/test_revisions.py::test_"
_READERS_AFTER = (f"{_LOST}::test_readers_of_before_the_loss_are_told_and_find_no_barrier_that_is_gone",)
_REFUSED = "tests/foreign/test_refused_decisions.py"
_CLICKED = f"{_SHOP}test_triggered_runs.py::test_"
_START = "tests/adopting/test_start_from.py::test_"
_SESSION = "tests/reading/test_session.py::test_"
_PARTITIONS = "tests/reading/test_partitions.py::test_one_"
_SQL = "tests/reading/test_rewriting.py::test_"
_STATES = ("tests/protocol/test_states.py::test_exactly_the_protocols_transitions",)
_GROUPS = ("tests/protocol/test_states.py::test_every_state_has_its_transitions_and_every_barrier_its_group",)
_LOCKS = (f"{_META}test_guards.py::test_every_transition_locks_its_topology_before_it_looks",)
_FILES, _FOLDER = "tests/sinks/test_file_sink.py::test_", "tests/sinks/test_files_locally.py::TestLocalFiles::test_"
_OFFSETS = "tests/sources/test_kafka_cuts.py::test_"
_TOPICS = "tests/sinks/test_kafka_ledger.py::test_"
_OBJECTS = "tests/sinks/test_files_on_s3.py::test_"
_FENCED = (f"{_META}test_attempts.py::test_a_superseded_attempt_can_report_nothing",)
_CLOSING = (f"{_META}test_attempts.py::test_a_closing_record_speaks_of_every_outlet_and_of_no_other",)
_MISSING = (f"{_META}test_committing.py::test_what_is_not_precommit_says_who_is_missing",)
_BLOCKED = (f"{_META}test_committing.py::test_blocked_until_a_person_decides",)
_RESTAGED = (f"{_META}test_restaging.py::test_what_is_downstream_is_voided_and_read_committed_falls_back",)
_VOIDED = (f"{_META}test_aborting.py::test_attempts_are_voided_and_nothing_counts_as_staged",)
_STALE = (f"{_META}test_opening.py::test_a_look_that_is_stale_is_told_to_look_again",)
_TRUST = (f"{_SHOP}test_barrier.py::test_trust_the_table_not_the_reporter",)
_BACK = (
    f"{_TABLES}test_checks.py::test_main_never_returns_to_what_it_left",
    f"{_TABLES}test_checks.py::test_main_never_returns_to_what_it_stands_on_although_the_log_has_forgotten",
)
_FOUND = "tests/model/test_found.py::test_"
_REVISED = f"{_TABLES}test_revised.py::test_"
_BAD_INPUT = "tests/revising/test_bad_input.py::test_"
_RUNS = "tests/revising/test_runs.py::test_"
_REVISING = f"{_META}test_revising.py::test_"
_DELIVERIES = f"{_META}test_deliveries.py::test_"
_SINK = "tests/delivering/test_postgresql.py::test_"
_TYPES = "tests/delivering/test_types.py::test_"
_LEDGER, _ZOMBIES = "tests/delivering/test_ledger.py::test_", "tests/delivering/test_zombies.py::test_"
_FENCE = (f"{_ZOMBIES}a_strangers_session_that_has_not_moved_the_ledger_is_named_and_fenced",)
_RECUTTING = "tests/revising/test_recut.py::test_"
_JOINING, _BOOTSTRAP = f"{_META}test_bootstrapping.py::test_", "tests/revising/test_bootstrap.py::test_"
_PLANNED, _OVERTAKEN = "tests/revising/test_refused.py::test_", "tests/revising/test_overtaken.py::test_"
_PINS = (
    f"{_TABLES}test_checks.py::test_a_pin_takes_no_name_that_is_taken_and_no_snapshot_that_is_gone",
    f"{_TABLES}test_checks.py::test_unpinning_takes_pins_only",
)
_GONE = (f"{_TABLES}test_checks.py::test_a_snapshot_that_is_gone_is_not_published",)
_ROOT = (
    f"{_TABLES}test_checks.py::test_an_empty_table_is_staged_on_a_root_of_the_attempts_own",
    f"{_TABLES}test_checks.py::test_a_root_that_stands_on_something_is_no_root",
)
_STAMP = (
    f"{_TABLES}test_checks.py::test_a_snapshot_with_another_stamp_or_none_is_refused",
    f"{_TABLES}test_checks.py::test_a_delete_may_bear_no_stamp_but_not_another_one",
)
_DROPS = (f"{_TABLES}test_checks.py::test_a_publish_drops_its_own_attempts_and_leaves_what_is_not_its_own",)
_BRANCH = (f"{_TABLES}test_checks.py::test_an_attempt_starts_on_its_base_and_not_on_its_own_half",)
_OUTLETS = (f"{_SPARK}test_driver_checks.py::test_each_outlet_is_written_or_called_unchanged_and_not_both",)
_DECLARED = (f"{_SPARK}test_driver_checks.py::test_a_job_touches_what_it_declares_and_nothing_else",)
_SPEC = (f"{_SPARK}test_driver_checks.py::test_a_driver_without_its_own_spec_does_nothing",)
_APPENDS = (
    f"{_SPARK}test_changes_refused.py::test_appends_refuse_updates_and_deletes",
    f"{_SPARK}test_changes_refused.py::test_appends_refuse_what_they_cannot_know",
)

_WITHOUT_SPARK: Mapping[str, tuple[str, ...]] = {
    # states
    "illegal-transition": _STATES,
    "barrier-transitions": _STATES,
    "table-transitions": _STATES,
    "attempt-transitions": _STATES,
    "live-attempts": ("tests/protocol/test_states.py::test_what_has_ended_stays_ended",),
    "staging-barriers": _GROUPS,
    "uncommitted-barriers": _GROUPS,
    "decided": _GROUPS,
    "moves-are-transitions": (f"{_META}test_guards.py::test_what_may_not_follow_is_refused_where_it_would_be_written",),
    "topology-lock": _LOCKS,
    "topology-row-lock": _LOCKS,
    "write-lock-first": (f"{_META}test_database.py::test_the_write_lock_is_held_from_the_first_look_to_the_end",),
    "compare-and-set": (
        f"{_META}test_guards.py::test_a_barrier_that_moved_meanwhile_is_left_alone",
        f"{_META}test_guards.py::test_an_attempt_that_moved_meanwhile_is_left_alone",
        f"{_META}test_guards.py::test_tables_of_which_one_moved_meanwhile_are_left_alone",
        f"{_REVISING}only_what_may_follow_is_written",
    ),
    "lost-race-is-noticed": (
        f"{_META}test_guards.py::test_a_barrier_that_moved_meanwhile_is_left_alone",
        f"{_META}test_guards.py::test_an_attempt_that_moved_meanwhile_is_left_alone",
        f"{_META}test_guards.py::test_tables_of_which_one_moved_meanwhile_are_left_alone",
        f"{_REVISING}only_what_may_follow_is_written",
    ),
    "audited": (f"{_META}test_attempts.py::test_the_last_table_makes_the_barrier_precommit",),
    "foreign-keys": (f"{_META}test_guards.py::test_the_database_itself_has_nothing_of_a_barrier_that_is_not_there",),
    "no-empty-metaservice": ("tests/metaservice/test_database.py::test_looking_makes_no_database",),
    "older-schema": (f"{_META}test_database.py::test_checking_creates_nothing",),
    "newer-schema": (f"{_META}test_database.py::test_a_newer_database_is_refused_and_left_alone",),
    # topologies
    "one-writer-a-table": (
        f"{_META}test_registering.py::test_the_union_is_what_has_to_be_valid_and_a_refusal_changes_nothing",
    ),
    "letters-have-a-table": ("tests/protocol/test_topology.py::test_what_is_refused",),
    "table-of-one-topology": (f"{_META}test_registering.py::test_two_topologies_cannot_have_one_table",),
    "claimed-while-declared": (f"{_META}test_registering.py::test_two_topologies_cannot_have_one_table",),
    "claimed-while-in-flight": (
        f"{_META}test_registering.py::test_a_table_can_be_taken_once_its_topology_has_let_it_go",
    ),
    "only-started-jobs": (f"{_META}test_registering.py::test_a_job_is_registered_when_its_own_task_has_started",),
    "old-runs-register-nothing": (
        f"{_SHOP}test_old_runs.py::test_an_aborted_barrier_is_opened_again_with_what_is_registered",
        f"{_SHOP}test_old_runs.py::test_an_old_run_of_a_member_takes_nothing_back",
        f"{_SHOP}test_old_runs.py::test_a_job_that_has_never_been_a_member_joins_from_behind_and_changes_nothing_else",
        f"{_META}test_registering.py::test_a_job_is_registered_when_its_own_task_has_started",
    ),
    "withdrawn-stays-away": (f"{_META}test_registering.py::test_what_left_does_not_come_back_until_it_is_let",),
    "leaves-no-readers-behind": (f"{_META}test_registering.py::test_a_job_whose_tables_are_read_cannot_leave",),
    "registrations-queue": (
        f"{_META}test_guards.py::test_registrations_queue_whatever_topology_they_are_for",
        f"{_META}test_guards.py::test_who_joins_or_leaves_queues_too",
    ),
    # opening
    "opens-on-the-head": _STALE,
    "opens-on-what-was-seen": _STALE,
    "opens-with-members-that-were-seen": _STALE,
    "opens-on-one-baseline": _STALE,
    "joins-on-the-head": (f"{_FOUND}an_opener_that_was_overtaken_observes",),
    "timestamps-rise": (f"{_META}test_opening.py::test_a_timestamp_not_after_the_head_names_both_and_the_run",),
    "one-barrier-a-timestamp": (f"{_META}test_guards.py::test_the_database_itself_has_one_barrier_a_timestamp",),
    "max-open-barriers": (f"{_META}test_opening.py::test_no_more_than_max_open",),
    "triggered-run-of-nothing": (f"{_SHOP}test_behind.py::test_a_click_does_what_is_missing_and_is_done",),
    "triggered-run-of-a-done-barrier": (f"{_CLICKED}a_click_at_a_timestamp_that_is_done_says_so",),
    "comes-back-after-publish": (
        f"{_META}test_opening.py::test_a_table_cannot_come_back_while_it_is_still_to_be_published",
    ),
    # cuts and sources
    "start-is-known": (f"{_START}tables_that_hold_rows_do_not_join_without_a_word_and_nothing_is_opened",),
    "joins-where-it-said": (f"{_START}an_empty_table_begins_with_everything_also_where_its_source_is_not_empty",),
    "source-of-its-own": (
        f"{_START}a_job_that_joins_later_does_not_take_part_in_cuts_that_others_have_made",
        f"{_START}jobs_that_join_with_one_source_begin_at_one_place_of_it",
        f"{_START}a_job_that_comes_back_to_a_source_that_others_went_on_reading_is_told_so",
    ),
    "resumes-from-what-is-there": (
        "tests/expiry/test_coming_back.py::test_what_has_expired_since_it_left_is_not_made_up_by_reading_all_again",
    ),
    "resumes-on-own-rows": (f"{_START}a_job_that_comes_back_goes_on_where_it_left_off",),
    "used-up-by-the-baseline": (f"{_START}an_aborted_first_barrier_is_joined_again_at_the_same_place",),
    "log-reaches-back": (f"{_START}a_table_whose_log_does_not_reach_back_is_not_guessed_at",),
    "item-in-one-cut": (f"{_META}test_opening.py::test_an_item_is_in_one_cut_only",),
    "items-of-a-revision-are-used": (f"{_REVISING}what_joins_by_a_new_cut_is_taken_by_nobody_else",),
    "promised-to-a-revision": (f"{_REVISING}what_joins_by_a_new_cut_is_taken_by_nobody_else",),
    "joins-what-nobody-took": (f"{_REVISING}what_somebody_took_since_the_plan_does_not_join",),
    "item-in-one-cut-key": (f"{_META}test_guards.py::test_the_database_itself_has_an_item_in_one_cut",),
    "cut-begins-where-the-last-ended": (
        f"{_META}test_opening.py::test_a_barrier_does_not_open_over_a_cut_that_was_changed_meanwhile",
    ),
    "cut-that-was-built-on": (
        f"{_META}test_opening.py::test_a_cut_that_the_next_one_begins_at_is_not_changed_under_it",
    ),
    "cut-that-was-read": (f"{_META}test_opening.py::test_a_cut_is_pinned_anew_until_something_closed_over_it",),
    "abort-frees-items": (
        f"{_META}test_aborting.py::test_the_run_may_reopen_its_timestamp_under_a_new_id_on_the_predecessor",
    ),
    "used-files-are-left-out": (
        "tests/sources/test_file_cuts.py::test_a_late_file_goes_into_the_current_epoch_and_is_counted",
    ),
    "files-as-they-were-cut": ("tests/sources/test_file_cuts.py::test_a_file_changed_or_gone_after_the_cut_is_named",),
    "up-to-the-last-stable-offset": (f"{_OFFSETS}an_open_transaction_is_waited_for_and_an_aborted_one_leaves_offsets",),
    "the-future-ends-no-epoch": ("tests/sources/test_file_event_time.py::test_a_wrong_clock_opens_no_barrier",),
    "no-offsets-are-skipped": (f"{_OFFSETS}what_is_gone_stops_the_source_and_is_skipped_only_where_that_was_said",),
    "lag-of-the-same-topic": (
        "tests/sources/test_kafka_lag.py::test_what_is_gone_is_counted_and_another_topic_is_told",
    ),
    "schemas-of-a-subject": ("tests/sources/test_kafka_registry.py::test_what_a_registry_has_not",),
    "schemas-that-can-be-read": ("tests/sources/test_kafka_registry.py::test_what_a_registry_has_not",),
    "compacted-is-not-read-again": (f"{_OFFSETS}a_revision_reads_no_topic_that_is_compacted",),
    "offsets-as-they-were-cut": (f"{_OFFSETS}what_is_gone_stops_the_source_and_is_skipped_only_where_that_was_said",),
    "source-roots": ("tests/coordinator/test_sources_that_fail.py::test_a_source_outside_of_the_roots_is_not_opened",),
    "put-off-is-made-once": ("tests/coordinator/test_sources_that_fail.py::test_two_jobs_read_one_cut",),
    "put-off-follows": (
        "tests/coordinator/test_sources_that_fail.py::test_epochs_that_were_put_off_are_cut_one_after_the_other",
    ),
    "files-of-a-cut": ("tests/hostile/test_landed_files.py::test_a_cut_has_no_more_files_than_can_be_kept",),
    "no-odd-files": ("tests/hostile/test_landed_files.py::test_a_link_is_no_delivery_and_no_empty_epoch",),
    "spark-reads-the-file": ("tests/sources/test_left_out.py::test_a_file_of_its_own_that_spark_would_pass_over",),
    "folder-is-there": ("tests/sources/test_file_cuts.py::test_a_folder_that_is_not_there_is_not_an_empty_epoch",),
    "paths-a-database-keeps": (
        "tests/hostile/test_end_to_end.py::test_a_file_that_no_database_can_keep_is_named_before_anything_is_written",
    ),
    # attempts
    "adopted-states": (
        f"{_META}test_attempts.py::test_of_two_that_start_one_attempt_the_second_is_told_to_ask_again",
        f"{_META}test_attempts.py::test_a_retry_adopts_what_was_closed_or_processed",
    ),
    "clear-is-no-retry": (f"{_META}test_attempts.py::test_a_clear_fences_what_was_under_way",),
    "running-is-fenced": (
        f"{_META}test_attempts.py::test_of_two_that_start_one_attempt_the_second_is_told_to_ask_again",
    ),
    "only-unbegun-is-led": (f"{_META}test_leading.py::test_what_somebody_has_begun_is_not_for_the_taking",),
    "once-in-a-run": ("tests/airflow/test_group.py::test_what_runs_once_is_refused_in_a_mapped_group",),
    "input-never-comes": (f"{_SHOP}test_behind.py::test_a_second_job_of_the_dag_follows_the_first",),
    "commit-has-its-own-tables": (f"{_SHOP}test_next.py::test_a_commit_whose_own_jobs_tables_are_missing_fails",),
    "skipped-is-not-published": (f"{_SHOP}test_next.py::test_what_was_skipped_is_not_published",),
    "rendered-for-its-run": (f"{_SHOP}test_behind.py::test_what_is_rendered_for_one_run_is_no_other_barriers",),
    "new-attempt-fences": (f"{_META}test_attempts.py::test_a_clear_fences_what_was_under_way",),
    "one-live-attempt": (
        f"{_META}test_guards.py::test_the_database_itself_has_one_live_attempt_of_a_job_at_a_barrier",
    ),
    "owner-reports": (f"{_META}test_attempts.py::test_a_dag_neither_does_nor_reports_the_work_of_anothers_job",),
    "moved-job-is-told": (f"{_META}test_attempts.py::test_a_job_that_has_moved_finds_earlier_barriers_done",),
    "fenced-reports-nothing": _FENCED,
    "aborted-takes-nothing": (f"{_META}test_attempts.py::test_an_aborted_barrier_takes_no_reports",),
    "decided-takes-no-attempt": (f"{_META}test_attempts.py::test_from_committing_on_only_a_retry_gets_an_answer",),
    "started-once": (f"{_META}test_attempts.py::test_of_two_that_start_one_attempt_the_second_is_told_to_ask_again",),
    "inputs-are-there": (f"{_META}test_attempts.py::test_it_waits_for_inlets_here_and_for_inlets_and_outlets_before",),
    "rebase-only-running": (f"{_META}test_attempts.py::test_reports_out_of_order_are_refused",),
    "kill-spares": (f"{_META}test_attempts.py::test_a_kill_leaves_what_is_processed_alone",),
    "closing-again": (f"{_META}test_attempts.py::test_closing_twice_is_fine_if_it_says_the_same",),
    "processed-again": (f"{_META}test_attempts.py::test_a_retry_adopts_what_was_closed_or_processed",),
    "clear-restages": _RESTAGED,
    "consuming": ("tests/protocol/test_restaging.py::test_only_attempts_that_have_read_are_voided",),
    "restaging-voids-consumers": (
        *_RESTAGED,
        f"{_FOREIGN}::test_a_running_attempt_on_ours_is_voided_too",
    ),
    "restaging-unstages-tables": _RESTAGED,
    "restaging-reopens": _RESTAGED,
    "abort-again": (f"{_META}test_aborting.py::test_aborting_again_leaves_alone_what_was_opened_since",),
    "decided-is-not-aborted": (f"{_META}test_aborting.py::test_from_committing_on_it_is_refused",),
    "abort-voids-attempts": _VOIDED,
    "abort-unstages-tables": _VOIDED,
    # PROCESSED
    "only-declared-outlets": (*_CLOSING, f"{_META}test_attempts.py::test_bases_follow_a_compaction"),
    "silent-outlet": _CLOSING,
    "precommit-needs-all-tables": (f"{_META}test_attempts.py::test_the_last_table_makes_the_barrier_precommit",),
    "closing-record": (f"{_SHOP}test_barrier.py::test_a_driver_that_died_before_its_last_write_is_not_processed",),
    "file-bears-the-nonce": (f"{_FORGED}test_a_forged_record_publishes_nothing",),
    "record-names-its-tables": (f"{_FORGED}test_garbage_ends_the_attempt_with_a_sentence",),
    "record-of-this-attempt": (f"{_FORGED}test_garbage_ends_the_attempt_with_a_sentence",),
    "unproven-is-given-up": (f"{_FORGED}test_a_forged_record_publishes_nothing",),
    "opened-is-not-closed": (f"{_HANDED}test_a_driver_that_reads_its_spec_and_died_is_not_an_unchanged_job", _TOLD),
    "wap-is-enabled": (f"{_HANDED}test_nothing_is_begun_without_wap",),
    "unchanged-job-wrote": (f"{_HANDED}test_an_outlet_without_output_is_not_taken_as_unchanged",),
    "one-driver": (f"{_HANDED}test_a_second_driver_of_the_same_attempt_is_noticed",),
    "guard-was-there": (f"{_HANDED}test_a_driver_without_the_guard_is_refused",),
    "unchanged-job-leaves-main-alone": (f"{_HANDED}test_a_job_that_wrote_past_its_branch_is_told_so_and_the_way_back",),
    "attempt-is-not-on-main": (f"{_HANDED}test_a_job_that_wrote_past_its_branch_is_told_so_and_the_way_back",),
    "spark-is-new-enough": (
        f"{_HANDED}test_a_spark_that_is_too_old_is_named",
        "tests/handover/test_adapters.py::test_the_spark_that_will_run_is_known_where_it_can_be",
    ),
    "trust-the-table": _TRUST,
    "bad-staging-is-given-up": _TRUST,
    "unchanged-is-unwritten": _TRUST,
    "head-is-what-was-closed": (
        f"{_TABLES}test_checks.py::test_the_head_of_the_branch_is_what_the_attempt_closed_with",
    ),
    "branch-is-there": (f"{_TABLES}test_checks.py::test_a_branch_that_was_dropped_stages_nothing",),
    "branch-at-base": _BRANCH,
    "base-is-there": _BRANCH,
    "ancestry": (f"{_TABLES}test_checks.py::test_a_branch_on_another_base_stages_nothing",),
    "stamp": _STAMP,
    "another-stamp-on-a-delete": _STAMP,
    "only-deletes-without-stamp": _STAMP,
    "compaction-changes-no-row": (f"{_SHOP}test_compacting.py::test_a_rewriting_that_changes_rows_is_refused",),
    "taken-is-not-passed-by": (f"{_META}test_maintenance.py::test_what_is_staged_later_stands_on_it",),
    "root-has-no-parent": _ROOT,
    "root-is-the-attempts": _ROOT,
    # the driver
    "spec-digest": (f"{_SPARK}test_driver_checks.py::test_a_spec_that_was_changed_on_the_way_is_refused",),
    "spec-version": (f"{_SPARK}test_driver_checks.py::test_a_spec_of_another_version_is_refused",),
    "next-has-a-digest": (
        "tests/batching/test_submitting.py::test_what_a_driver_is_told_next_is_from_its_own_task_and_names_a_digest",
    ),
    "spec-is-named": _SPEC,
    "spec-is-there": _SPEC,
    "driver-error-is-the-tasks": (
        "tests/delivering/test_orders.py::test_an_answer_says_where_the_files_are_or_what_is_to_be_raised",
    ),
    "spec-has-sql": (f"{_SPARK}test_driver_checks.py::test_the_sql_application_does_nothing_without_a_statement",),
    "changed-outlet": _OUTLETS,
    "driver-silent-outlet": _OUTLETS,
    "opened-once": (f"{_SPARK}test_driver_checks.py::test_of_two_drivers_of_one_attempt_one_opens_it",),
    "closed-once": (f"{_SPARK}test_driver_checks.py::test_of_two_drivers_of_one_attempt_one_closes_it",),
    "undeclared-inlet": _DECLARED,
    "undeclared-outlet": _DECLARED,
    "undeclared-external": _DECLARED,
    # corrections
    "corrects-its-table": (
        f"{_SPARK}test_corrections_written.py::test_a_statement_that_does_something_else_is_refused_before_it_travels",
        "tests/reading/test_correcting.py::test_a_statement_about_another_table",
    ),
    "correction-reads-pinned": ("tests/reading/test_correcting.py::test_what_is_no_correction",),
    "replacement-has-the-columns": (
        f"{_SPARK}test_corrections_written.py::test_rows_that_replace_an_epoch_have_the_columns_of_the_table",
    ),
    "revised-snapshot-is-there": (f"{_TABLES}test_schemas.py::test_a_snapshot_that_was_expired",),
    "schema-as-it-was": (f"{_TABLES}test_schemas.py::test_what_may_change_and_what_may_not",),
    "own-files-are-no-sources": (
        "tests/sources/test_files_in_spark.py::test_of_files_that_no_source_reads_nothing_is_said",
    ),
    # changes
    "columns-with-initial-default": (
        f"{_SPARK}test_changes_refused.py::test_columns_that_older_files_have_by_default",
    ),
    # readers
    "expired-is-not-read": (f"{_READING}test_an_expired_barrier_is_named_with_the_oldest_that_can_be_read",),
    "aborted-is-not-read": (f"{_READING}test_barriers_that_cannot_be_read_at",),
    "not-read-before-its-level": (f"{_READING}test_barriers_that_cannot_be_read_at",),
    "sink-of-one-dag": (f"{_DELIVERIES}a_sink_is_of_one_dag_until_it_is_released",),
    "told-until-it-is-heard": (f"{_DELIVERIES}what_airflow_was_not_told_is_known",),
    "one-claims-a-sink": (f"{_DELIVERIES}a_sink_is_claimed_from_whom_one_has_seen",),
    "ends-its-own-claim": (f"{_DELIVERIES}a_delivery_that_has_ended_leaves_the_sink_to_others",),
    "lost-claim-is-told": (f"{_DELIVERIES}a_sink_is_claimed_from_whom_one_has_seen",),
    "change-is-the-deliverys": (
        "tests/delivering/test_before.py::test_no_table_brings_its_own_word_for_what_became_of_a_row[changes]",
    ),
    "ledger-fences-deliverers": _FENCE,
    "ledger-moves-from-its-position": (f"{_LEDGER}the_same_changes_are_not_delivered_again",),
    "opened-by-whom-it-is-claimed": (f"{_ZOMBIES}a_session_that_stands_still_is_ended[COMMIT]",),
    "applied-as-staged": (f"{_SINK}rows_that_others_took_away_stop_a_delivery",),
    "loaded-as-sent": (f"{_TYPES}a_row_that_a_trigger_keeps_out_is_refused_by_the_key",),
    "kept-as-sent": (f"{_TYPES}a_value_that_a_column_would_cut_is_refused_by_the_key",),
    "logged-as-the-ledger": (f"{_SINK}what_cannot_work_is_refused_before_the_first_barrier",),
    "ledger-of-this-format": (f"{_LEDGER}a_ledger_that_somebody_else_wrote_is_told",),
    "ledger-of-this-incarnation": (f"{_LEDGER}a_ledger_that_somebody_else_wrote_is_told",),
    "ledger-of-this-place": (f"{_LEDGER}a_copy_of_the_database_is_told",),
    "ledger-of-this-target": (f"{_SINK}a_target_that_was_made_anew_is_told",),
    "delivered-as-declared": (f"{_SINK}another_table_takes_over_a_target_when_a_person_says_so",),
    "target-of-one-sink": (f"{_SINK}a_target_is_fed_by_one_sink",),
    "targets-are-locked": (f"{_SINK}of_two_sinks_that_open_for_one_target_at_once_one_sees_the_other",),
    "loaded-anew-into-nothing": (f"{_SINK}an_appending_sink_is_loaded_anew_once_its_target_is_empty",),
    "ledger-not-ahead": (f"{_SINK}a_ledger_that_is_ahead_is_told",),
    "corrections-reach-sinks": (f"{_SINK}a_revision_is_refused_that_a_sink_could_not_take",),
    "ledger-not-behind": (f"{_SINK}a_ledger_that_says_less_than_it_did_is_told",),
    "one-token": (f"{_FILES}of_many_who_open_at_once_one_can_deliver",),
    "newest-deliverer": (f"{_FOLDER}one_who_was_overtaken_learns_so",),
    "ledger-is-there": (f"{_FILES}a_ledger_that_is_lost_is_no_beginning",),
    "ledger-is-ours": (f"{_FOLDER}what_a_person_lets_it_adopt",),
    "no-data-without-ledger": (f"{_FILES}data_without_a_ledger_is_nobodys_to_go_on_with",),
    "after-what-was-delivered": (f"{_FOLDER}what_comes_out_of_order_is_refused",),
    "no-data-ahead-of-ledger": (
        f"{_FILES}a_ledger_that_was_restored_from_yesterday_is_told",
        f"{_FILES}a_folder_that_somebody_makes_meanwhile_is_left_alone",
    ),
    "next-manifest-is-mine": (f"{_OBJECTS}of_two_who_deliver_the_same_one_does",),
    "no-files-ahead-of-manifests": (f"{_OBJECTS}manifests_that_are_lost_are_told",),
    "topics-fence-deliverers": (f"{_TOPICS}one_who_was_overtaken_is_told_so",),
    "read-to-the-high-watermark": (f"{_TOPICS}an_open_transaction_of_others_does_not_hide_our_newest_record",),
    "earlier-declaration-is-fenced": (f"{_TOPICS}a_deliverer_of_an_earlier_declaration_is_fenced",),
    "records-after-what-was-delivered": (f"{_TOPICS}what_does_not_follow_is_refused",),
    "row-fits-topic": ("tests/sinks/test_kafka.py::test_rows_of_a_megabyte_and_more",),
    "nothing-lost-in-json": (f"{_FILES}json_has_no_nan",),
    "whole-tables-have-their-key": (f"{_SPARK}test_delivering.py::test_two_rows_of_one_key_are_refused_by_name",),
    "sink-beyond-history": (f"{_LEDGER}what_was_delivered_last_can_be_read_no_more",),
    "deliveries-go-forward": (f"{_DELIVERIES}a_late_report_takes_nothing_back",),
    "lease-locks-its-barrier": _EXCLUDED,
    "expiring-is-not-leased": (f"{_LEASES}test_no_lease_on_what_has_changed_since_it_was_read",),
    "rolled-back-is-not-leased": (f"{_LEASES}test_no_lease_on_what_has_changed_since_it_was_read",),
    "dead-leases-stay-dead": (f"{_LEASES}test_a_lease_lives_as_long_as_it_is_renewed",),
    "lost-lease-is-told": (f"{_LEASES}test_a_lease_lives_as_long_as_it_is_renewed",),
    "swept-before-held": (f"{_LEASES}test_new_leases_clean_up_after_dead_ones",),
    "newest-stays-readable": (
        f"{_EXPIRING}test_the_newest_and_what_is_not_committed_stay",
        f"{_EXPIRING}test_the_newest_outlives_the_policy_until_the_next_is_published",
    ),
    "held-baseline-stays": (
        "tests/expiry/test_expiring.py::test_what_a_table_held_when_it_joined_stays_while_somebody_reads_that",
    ),
    "held-is-not-expired": (f"{_EXPIRING}test_what_was_leased_since_it_was_chosen_stays",),
    "undelivered-is-not-expired": (f"{_EXPIRING}test_what_a_sink_received_last_and_what_it_lacks_stays",),
    "undelivered-steps-stay": ("tests/expiry/test_expiring.py::test_what_a_sink_lacks_stays_with_every_step_since",),
    "expiry-locks-its-barriers": _EXCLUDED,
    "visibility-goes-first": (f"{_EXPIRING}test_tags_do_not_go_before_visibility",),
    "rolling-back-locks": _EXCLUDED,
    "restaging-is-told-readers": (f"{_LEASES}test_who_reads_what_is_staged_anew_learns_it",),
    "abort-is-told-readers": (f"{_LEASES}test_who_reads_what_is_aborted_learns_it",),
    "another-decision-is-told-readers": (f"{_LEASES}test_who_reads_what_a_person_decides_against_learns_it",),
    "recovered-without-tags-is-expired": _READERS_AFTER,
    "recovered-leases-are-new": _READERS_AFTER,
    "trims-the-past-only": (f"{_META}test_trimming.py::test_the_epoch_that_a_compaction_stands_on_stays",),
    "newest-row-stays": (f"{_META}test_trimming.py::test_a_table_that_has_left_is_known_where_it_stood_last",),
    "branches-of-readers-stay": (f"{_TABLES}test_checks.py::test_a_publish_leaves_the_branches_that_readers_hold",),
    # publishing
    "decided-once": (f"{_META}test_committing.py::test_again_changes_nothing",),
    "only-precommit-is-decided": _MISSING,
    "expected-main-of-every-table": (
        f"{_META}test_committing.py::test_every_table_has_to_be_looked_at_before_the_decision",
        f"{_REVISING}the_decision_names_main_of_the_head_that_stands",
    ),
    "barriers-commit-in-order": (f"{_META}test_committing.py::test_in_order_only",),
    "one-publisher": (
        f"{_META}test_guards.py::test_what_another_publishes_is_waited_for_whatever_it_is",
        f"{_REVISING}nothing_else_is_published_beside_it",
    ),
    "one-publisher-index": (f"{_META}test_guards.py::test_the_database_itself_has_one_publisher_a_topology",),
    "published-once": (f"{_META}test_committing.py::test_again_changes_nothing",),
    "only-decided-is-published": _MISSING,
    "aborted-is-not-committed": _MISSING,
    "aborted-is-told": (
        f"{_SHOP}test_committing.py::test_the_commit_of_an_aborted_barrier_commits_no_earlier_one_either",
        f"{_SHOP}test_committing.py::test_a_barrier_that_is_aborted_under_its_committer_is_not_called_committed",
    ),
    "open-is-told": (
        f"{_SHOP}test_committing.py::test_an_open_barrier_is_neither_published_nor_written_into_the_journal",
    ),
    "commits-no-further": (f"{_SHOP}test_committing.py::test_a_commit_takes_no_later_barrier_along",),
    "blocked-waits-for-a-person": _BLOCKED,
    "blocked-is-told": (
        f"{_SHOP}test_committing.py::test_a_blocked_barrier_goes_on_when_a_person_says_so_and_not_when_the_table_is_mended",
    ),
    "blocked-again": _BLOCKED,
    "unblocked-again": _BLOCKED,
    "only-blocked-is-unblocked": (
        f"{_META}test_guards.py::test_only_what_is_blocked_is_led_out",
        f"{_REFUSED}::test_what_cannot_be_decided_is_refused",
    ),
    "decided-by-another": (
        f"{_SHOP}test_committing.py::test_what_another_committer_published_meanwhile_is_no_foreign_write",
        f"{_SHOP}test_barrier.py::test_a_foreign_write_is_noticed_before_the_decision",
        f"{_OVERTAKEN}by_another_publisher",
        f"{_OVERTAKEN}by_another_decision",
    ),
    "foreign-write": (f"{_TABLES}test_checks.py::test_a_foreign_write_is_never_overwritten",),
    "foreign-write-on-empty": (
        f"{_TABLES}test_checks.py::test_what_was_written_to_an_empty_table_is_noticed_by_a_publish_of_nothing",
    ),
    "only-compactions-are-absorbed": (f"{_TABLES}test_checks.py::test_a_foreign_write_is_never_overwritten",),
    "same-rows-by-compaction-only": (
        f"{_TABLES}test_checks.py::test_what_stands_before_a_write_does_not_hold_its_rows",
    ),
    "never-back": _BACK,
    "builds-on-expected": (f"{_TABLES}test_checks.py::test_what_is_published_builds_on_what_is_expected",),
    "new-snapshot-is-there": _GONE,
    "published-snapshot-is-there": _GONE,
    "tag-is-ours": (f"{_TABLES}test_checks.py::test_a_tag_of_the_barriers_name_that_somebody_else_made_is_left_alone",),
    "ref-is-ours": _PINS,
    "branches-of-others-stay": _DROPS,
    "branches-of-later-barriers-stay": _DROPS,
    "branches-of-revisions-stay": (f"{_REVISED}branches_of_revisions_that_are_being_staged_stay_with_every_publish",),
    "branches-of-other-revisions-stay": (f"{_REVISED}a_cancelled_revision_leaves_no_branch_and_the_others_stay",),
    "revised-tags-are-ours": (f"{_REVISED}a_tag_of_that_name_which_somebody_else_made_is_left_alone",),
    "revised-snapshots-are-there": (f"{_REVISED}what_is_gone_is_neither_published_nor_tagged",),
    "builds-on-the-revisions-base": (f"{_REVISED}what_is_published_was_built_on_the_revisions_base",),
    "revision-from-an-empty-root": (f"{_REVISED}what_is_computed_anew_began_on_an_empty_root_of_its_own",),
    "root-is-of-the-topology": (f"{_REVISED}what_is_computed_anew_began_on_an_empty_root_of_its_own",),
    "root-is-not-the-old-lines": (f"{_REVISED}what_is_computed_anew_began_on_an_empty_root_of_its_own",),
    "set-back-is-no-publish": (f"{_REVISED}a_publisher_that_wakes_late_does_not_undo_that_somebody_set_main_back",),
    "foreign-write-on-emptied": (f"{_REVISED}a_revision_that_leaves_no_rows_takes_nothing_of_others_away",),
    "pin-is-ours": _PINS,
    "pinned-snapshot-is-there": _PINS,
    "unpin-leaves-main": _PINS,
    "unpin-leaves-branches": _PINS,
    "pointer-write-lock": (
        f"{_TABLES}test_checks.py::test_on_sqlite_a_publish_is_the_only_writer_from_its_first_look",
    ),
    "pointer-row-lock": (f"{_TABLES}test_checks.py::test_rows_are_locked_in_the_order_of_their_names",),
    "pointer-lock-order": (f"{_TABLES}test_checks.py::test_rows_are_locked_in_the_order_of_their_names",),
    "pointer-compare-and-set": (f"{_TABLES}test_checks.py::test_a_pointer_moves_only_from_where_it_was_seen",),
    "table-is-the-same": (f"{_TABLES}test_rest_changes.py::test_what_has_to_be_there_is_said_along",),
    "refs-are-where-they-were": (f"{_TABLES}test_rest_changes.py::test_what_has_to_be_there_is_said_along",),
    "all-are-looked-at-before-the-first": (
        f"{_CATALOGS}test_publishing.py::test_what_is_refused_of_one_table_publishes_none[rest roll-forward]",
    ),
    "commits-are-looked-at": (f"{_CATALOGS}test_publishing.py::test_a_change_that_the_server_dropped_is_sent_again",),
    "catalog-is-proved": (f"{_CATALOGS}test_proof.py::test_a_barrier_opens_on_a_catalog_that_was_proved_only",),
    "keeps-branches": (f"{_CATALOGS}test_proof.py::test_a_catalog_that_keeps_no_branches_is_refused",),
    "atomic-is-proved": (f"{_CATALOGS}test_proof.py::test_the_reference_server_is_not_taken_for_atomic",),
    "pointer-count": (f"{_TABLES}test_checks.py::test_a_pointer_moves_only_from_where_it_was_seen",),
    "overtaken-is-made-anew": (
        f"{_TABLES}test_atomicity.py::test_what_was_staged_ahead_is_used_or_made_anew_if_overtaken",
    ),
    "files-of-a-moved-pointer": (
        f"{_TABLES}test_atomicity.py::test_a_joined_publish_is_committed_with_its_transaction",
        f"{_TABLES}test_atomicity.py::test_a_joined_publish_that_is_refused_leaves_no_files",
    ),
    "files-of-an-unknown-commit": (
        f"{_TABLES}test_checks.py::test_files_stay_when_nobody_knows_whether_the_pointers_moved",
        f"{_TABLES}test_atomicity.py::test_a_publish_that_is_refused_leaves_no_files",
    ),
    "files-of-a-repeated-commit": (
        f"{_CATALOGS}test_between.py::test_a_commit_that_comes_twice_keeps_what_it_has_written",
    ),
    # a MetaService that was lost
    "lead-before-opening": (
        f"{_LOST}::test_two_deployments_on_one_warehouse_are_told_apart",
        f"{_LOST}::test_a_backup_three_barriers_old_is_noticed_refused_and_caught_up",
    ),
    "lead-before-deciding": (
        f"{_LOST}::test_what_was_in_flight_at_the_backup_is_not_committed_on_top",
        f"{_PLANNED}a_metaservice_that_has_lost_a_revision_decides_nothing",
    ),
    "another-metaservice-leads": (f"{_LOST}::test_two_deployments_on_one_warehouse_are_told_apart",),
    "old-backup": (f"{_LOST}::test_a_backup_three_barriers_old_is_noticed_refused_and_caught_up",),
    "origin-before-leading": (f"{_LOST}::test_without_a_journal_the_tables_still_say_that_something_is_lost",),
    "origin-is-known": (f"{_LOST}::test_without_a_journal_the_tables_still_say_that_something_is_lost",),
    "origin-was-published": (f"{_HANDED}test_a_staged_snapshot_on_main_keeps_nobody_from_leading",),
    "own-write-is-no-foreign-one": (f"{_LOST}::test_a_head_that_lags_does_not_hide_what_was_published",),
    "journal-before-publish": (
        f"{_LOST}::test_a_backup_three_barriers_old_is_noticed_refused_and_caught_up",
        f"{_PLANNED}a_metaservice_that_has_lost_a_revision_decides_nothing",
    ),
    "journal-is-there": (f"{_LOST}::test_a_missing_entry_is_named",),
    "journal-version": ("tests/protocol/test_journal.py::test_a_journal_of_another_version_is_not_read",),
    "recovers-by-a-journal": (f"{_LOST}::test_without_a_journal_the_tables_still_say_that_something_is_lost",),
    "journal-leads-back": (
        f"{_LOST}::test_recovering_into_a_metaservice_that_the_journal_does_not_lead_back_to_is_refused",
    ),
    "journal-agrees": (f"{_LOST}::test_recovering_into_a_strangers_metaservice_is_refused",),
    "recovers-after-what-both-know": (f"{_META}test_guards.py::test_a_recovery_puts_nothing_back_that_is_commit",),
    "day-of-the-revision": (f"{_RUNS}a_run_of_a_day_that_is_not_in_the_revision_is_refused",),
    "dag-of-the-revision": (f"{_RUNS}a_run_of_a_dag_that_has_no_part_in_it_is_refused",),
    "baseline-is-not-cleared": (f"{_RUNS}rows_of_before_a_job_joined_are_not_cleared",),
    "source-is-still-held": (f"{_BAD_INPUT}a_table_outside_that_has_expired_what_an_epoch_read",),
    "source-is-read": (f"{_RECUTTING}only_what_is_read_from_files_is_cut_anew",),
    "recut-one-by-one": (f"{_RECUTTING}only_what_is_read_from_files_is_cut_anew",),
    "recut-is-read": (f"{_RECUTTING}only_what_is_read_from_files_is_cut_anew",),
    "positions-are-not-cut-anew": (
        f"{_RECUTTING}only_what_is_read_from_files_is_cut_anew",
        f"{_OFFSETS}it_is_not_cut_anew",
    ),
    "held-over-stays": (
        "tests/sources/test_file_recuts.py::test_what_later_epochs_read_too_is_not_taken_from_under_them",
    ),
    "gone-is-not-empty": (f"{_BAD_INPUT}input_that_is_gone_unless_what_came_of_it_is_reused",),
    "stands-in-for-a-whole-job": (f"{_RUNS}what_stands_in_for_a_job_stands_in_for_all_of_it",),
    "corrections-are-whole": (f"{_RUNS}a_correction_of_half_a_job_is_refused",),
    "old-backup-of-a-revision": (f"{_LOST_REVISION}a_backup_of_before_a_revision_is_noticed_and_caught_up",),
    "origins-revision-is-known": (f"{_LOST_REVISION}a_head_that_lags_does_not_hide_a_revision",),
    "journal-leads-back-to-the-revision": (f"{_LOST_REVISION}a_stranger_with_a_revision_of_its_own_is_refused",),
    "decided-revision-is-published": (f"{_LOST_REVISION}a_decision_that_was_not_published_is_rolled_forward",),
    "revisions-are-recovered": (f"{_LOST_REVISION}a_backup_of_before_a_revision_is_noticed_and_caught_up",),
    "staging-is-given-up": (f"{_LOST_REVISION}a_revision_that_was_being_staged_at_the_backup_is_given_up",),
    "recovered-revision-numbers-are-new": (
        f"{_LOST_REVISION}a_revision_that_was_being_staged_when_all_was_lost_keeps_its_number",
    ),
    "in-flight-is-given-up": (f"{_LOST}::test_what_was_open_is_given_up_and_joins_the_next",),
    "recovered-numbers-are-new": (f"{_LOST}::test_attempts_of_the_lost_time_get_no_namesake",),
    "new-incarnation": (f"{_LOST}::test_attempts_of_the_lost_time_get_no_namesake",),
    "schema-at-each-transaction": (
        f"{_META}test_database.py::test_a_database_that_is_upgraded_under_a_process_is_refused_by_its_next_step",
    ),
    "same-decision-throughout": (
        f"{_FOREIGN}::test_a_committer_that_slept_through_the_decision_does_not_go_by_the_old_one",
    ),
    "kept-snapshot-is-there": (
        f"{_REFUSED}::test_ours_cannot_be_kept_when_it_is_gone_nor_decided_about_a_table_that_is",
    ),
    "decision-can-be-carried-out": (f"{_REFUSED}::test_our_tags_name_has_to_be_freed_first",),
    "refused-is-told": (f"{_CATALOGS}test_between.py::test_refused_credentials_block_no_barrier[all-401]",),
    "looks-run-out": (
        f"{_SHOP}test_committing.py::test_a_commit_does_not_chase_tables_that_keep_moving",
        f"{_SHOP}test_committing.py::test_a_commit_does_not_chase_snapshots_that_keep_changing",
        f"{_OVERTAKEN}by_one_commit_after_another",
    ),
    "last-look": (
        f"{_SHOP}test_committing.py::test_what_a_decided_barrier_would_be_blocked_by_refuses_one_that_is_not_decided",
        f"{_OVERTAKEN}what_would_stop_a_decided_one_is_said_before",
    ),
    # revisions
    # joining with a history
    "claimed-while-waiting": (f"{_JOINING}its_tables_are_taken",),
    "waits-for-its-history": (f"{_JOINING}a_job_that_waits_is_in_no_barrier",),
    "reads-what-has-its-history": (f"{_JOINING}nobody_reads_them_before",),
    "joins-alone": (f"{_BOOTSTRAP}what_is_asked_for_beside_it",),
    "joins-with-what-it-reads": (f"{_BOOTSTRAP}what_another_one_has_yet_to_compute",),
    "history-of-what-is-there": (f"{_BOOTSTRAP}a_source_that_has_no_history",),
    "history-from-the-sources-beginning": (f"{_BOOTSTRAP}a_shared_source_is_read_from_its_first_cut_on",),
    "history-into-empty-tables": (f"{_BOOTSTRAP}a_table_that_was_emptied",),
    "joins-with-all": (f"{_FOUND}the_first_epoch_of_a_history_can_be_computed_once_more",),
    "joins-with-its-history": (f"{_JOINING}it_is_a_member_once_its_history_is_published",),
    "revision-transitions": ("tests/protocol/test_states.py::test_exactly_the_revisions_transitions",),
    "illegal-revision-transition": (f"{_REVISING}only_what_may_follow_is_written",),
    "one-revision-under-way": (
        f"{_REVISING}one_at_a_time",
        f"{_REVISING}the_database_itself_has_one_under_way",
    ),
    "revises-what-was-planned": (
        f"{_REVISING}begins_with_what_was_planned",
        f"{_META}test_bootstrapping.py::test_only_jobs_that_wait_join_by_a_revision",
    ),
    "range-in-history": (f"{_PLANNED}days_have_to_be_named_and_in_history",),
    "something-to-correct": (f"{_PLANNED}there_has_to_be_something_to_correct",),
    "days-are-named": (f"{_PLANNED}days_have_to_be_named_and_in_history",),
    "careless-replay": (f"{_REVISING}a_replay_is_no_longer_than_its_author_expects",),
    "replay-catches-up": (f"{_PLANNED}replay_has_to_catch_up",),
    "written-table-is-corrected": (f"{_PLANNED}corrections_are_of_tables_and_barriers_that_are_replayed",),
    "corrections-are-replayed": (f"{_PLANNED}corrections_are_of_tables_and_barriers_that_are_replayed",),
    "input-is-there": (f"{_PLANNED}input_has_to_be_there",),
    "bases-are-there": (f"{_FOUND}what_a_table_held_when_it_joined_and_has_expired_is_not_built_on",),
    "revised-steps-stay": (
        f"{_FOUND}an_expiry_leaves_a_revision_what_it_builds_on",
        f"{_FOUND}what_a_table_held_when_it_joined_and_has_expired_is_not_built_on",
    ),
    "revised-tables-stay": (f"{_FOUND}a_job_that_left_and_came_back_is_not_revised_in_part",),
    "cleared-is-not-gone-on-from": (f"{_FOUND}a_job_that_came_back_is_not_computed_from_a_beginning_before_that",),
    "swapped-by-another": (
        f"{_FOUND}two_publishers_of_a_revision_both_succeed",
        f"{_FOUND}a_publisher_is_told_that_its_revision_was_cancelled",
    ),
    "expired-is-not-built-on": (f"{_PLANNED}what_has_expired_is_neither_revised_nor_built_on",),
    "expired-is-not-revised": (
        f"{_REVISING}what_has_expired_since_the_plan_is_not_built_on",
        f"{_PLANNED}what_has_expired_is_neither_revised_nor_built_on",
        f"{_FOUND}where_only_maintenance_can_be_read_there_is_nothing_to_compute_anew",
    ),
    "revised-is-not-expired": (f"{_REVISING}what_a_revision_builds_on_does_not_expire",),
    "replays-on-what-was-there": (f"{_REVISING}jobs_are_replayed_as_they_are_declared_now",),
    "revises-all-that-stands-on-it": (f"{_REVISING}a_job_that_comes_to_read_what_is_revised_is_not_left_out",),
    "restaging-voids-revised": (f"{_REVISING}restaging_what_it_was_computed_from_voids_that",),
    "ended-revision-takes-nothing": (f"{_REVISING}an_ended_revision_takes_nothing",),
    "decided-revision-is-not-cancelled": (f"{_REVISING}what_is_decided_is_not_cancelled",),
    "gate-is-closed": (f"{_REVISING}while_the_gate_is_closed_nothing_opens",),
    "publishes-only-what-is-staged": (f"{_REVISING}only_what_is_staged_up_to_the_head_is_published",),
    "swaps-at-the-head-that-was-seen": (f"{_REVISING}the_decision_names_main_of_the_head_that_stands",),
    "cut-is-of-one-epoch": (f"{_FOUND}what_was_read_as_one_epoch_stays_the_epochs_that_it_was",),
    "revision-decided-once": (f"{_REVISING}it_is_decided_once_and_published_once",),
    "only-decided-revision-is-published": (f"{_REVISING}only_what_is_staged_up_to_the_head_is_published",),
    "revision-published-once": (f"{_REVISING}it_is_decided_once_and_published_once",),
    "committed-by-another": tuple(
        f"{_OVERTAKEN}{name}" for name in ("by_a_commit", "by_a_stranger", "by_a_commit_that_dies_half_way")
    ),
    "revised-by-another": (f"{_OVERTAKEN}a_commit_by_a_revision",),
    "commits-what-was-seen": (f"{_REVISING}a_commit_that_looked_before_the_swap_looks_again",),
    "swap-voids-attempts": (f"{_REVISING}open_barriers_are_pointed_to_what_was_revised",),
    "swap-is-told-readers": (f"{_REVISING}readers_of_open_barriers_are_told",),
    "published-anew": (
        f"{_FOREIGN}::test_a_table_that_main_has_been_at_is_published_anew",
        f"{_TABLES}test_checks.py::test_only_a_compaction_keeps_the_rows_of_what_it_stands_on",
    ),
    "set-aside-is-ours": (f"{_REFUSED}::test_the_name_of_the_tag_that_sets_aside_has_to_be_free_too",),
    # reading
    "reads-only": (f"{_SQL}writes_and_what_is_no_query_are_refused",),
    "reads-only-inside": (f"{_SQL}writes_inside_of_a_query_are_refused",),
    "one-statement": (f"{_SQL}writes_and_what_is_no_query_are_refused",),
    "spliced-where-the-name-is": (f"{_SQL}a_name_that_is_not_where_the_parser_says_is_not_pinned",),
    "names-are-in-the-text": (f"{_SQL}what_cannot_be_pinned_is_refused",),
    "table-by-keyword": (f"{_SQL}what_cannot_be_pinned_is_refused",),
    "no-time-travel-of-its-own": (f"{_SQL}a_table_has_no_time_of_its_own",),
    "no-other-branch": (f"{_SQL}a_table_has_no_time_of_its_own",),
    "no-table-of-the-topology-is-left-out": (
        f"{_SQL}a_table_of_the_topology_that_the_answer_does_not_have_is_not_read",
    ),
    "no-table-by-another-catalog": (
        "tests/reading/test_answer.py::test_a_table_by_another_catalog_is_never_read_as_it_is_now",
    ),
    "namespace-is-known": (f"{_SQL}a_name_without_a_namespace_is_not_left_to_the_engine",),
    "pipes-hide-no-table": (f"{_SQL}what_pipes_call_something_is_refused",),
    "names-lead-from-a-known-place": (
        f"{_SQL}where_spark_stands_is_understood_or_refused",
        f"{_SQL}names_in_icebergs_views_lead_to_what_they_read",
    ),
    "views-end": (f"{_SQL}views_that_contain_themselves_are_refused",),
    "lost-lease-ends-reading": (f"{_SESSION}the_last_look_does_not_wait_for_a_heartbeat",),
    "closed-session-reads-nothing": (f"{_SESSION}a_session_reads_one_barrier_whatever_is_committed_meanwhile",),
    "silence-ends-reading": (f"{_SESSION}a_metaservice_that_is_silent_ends_the_reading",),
    "handed-out-for-a-time": ("tests/reading/test_handing_out.py::test_it_is_held_for_as_long_as_was_said",),
    "reading-ends-with-a-look": (f"{_SESSION}a_loss_that_no_heartbeat_noticed_is_told_at_the_end",),
    "results-go-beside-the-topology": (
        "tests/reading/test_results.py::test_a_table_of_a_topology_is_written_by_its_jobs_only",
    ),
    "made-with-partitions": (f"{_PARTITIONS}that_is_not_there_is_made_only_with_partitions",),
    "has-partitions": (f"{_PARTITIONS}without_partitions",),
    "partitions-as-asked": (f"{_PARTITIONS}with_other_partitions_than_the_author_says",),
    "partitions-of-one-kind": (f"{_PARTITIONS}with_rows_of_before_its_partitioning_was_changed",),
    "partitions-can-be-seen": (f"{_PARTITIONS}of_another_catalog_cannot_be_looked_at",),
    "sessions-never-go-back": (f"{_SESSION}going_back_for_no_reason_is_refused",),
    "old-answer-is-told": (f"{_SESSION}an_answer_that_is_too_old_is_an_error_and_holds_nothing",),
    "snapshot-of-an-answer-is-there": (
        "tests/reading/test_duckdb.py::test_a_snapshot_that_is_gone_is_an_error_and_not_another_one",
    ),
}

ON_SPARK: Mapping[str, tuple[str, ...]] = {
    "committed-records-only": ("tests/sources/test_kafka_in_spark.py::test_of_transactions_what_was_committed",),
    "resumes-after-an-epoch": (f"{_META}test_maintenance.py::test_it_inherits_and_is_no_epoch",),
    "source-is-pinned": (
        "tests/sources/test_iceberg_table.py::test_the_owners_may_expire_snapshots_and_the_epoch_stays",
    ),
    "event-time-is-a-timestamp": (
        "tests/sources/test_iceberg_table.py::test_event_times_that_are_not_to_be_had_are_an_error",
    ),
    "bounds-of-event-times": (
        "tests/sources/test_iceberg_table.py::test_event_times_that_are_not_to_be_had_are_an_error",
    ),
    "reused-rows-have-no-defaults": (
        f"{_SPARK}test_corrections.py::test_rows_of_before_a_column_that_older_rows_have_by_default",
    ),
    "replacement-has-files": (
        f"{_SPARK}test_corrections.py::test_a_file_that_spark_would_pass_over_does_not_take_an_epochs_rows_away",
    ),
    "reused-deletes-are-exact": (f"{_SPARK}test_corrections.py::test_a_row_that_went_and_is_not_there_as_it_was",),
    "driver-finds-its-branch": (
        f"{_SPARK}test_epoch_run.py::test_a_dropped_branch_is_an_error_that_a_new_attempt_mends",
    ),
    "driver-starts-on-untouched-branch": (
        f"{_SPARK}test_driver_checks.py::test_a_driver_does_not_start_on_top_of_an_earlier_ones_half",
        f"{_SPARK}test_epoch_run.py::test_an_attempt_does_not_run_on_top_of_its_own_half",
    ),
    "snapshot-to-read-is-there": (f"{_SPARK}test_changes_refused.py::test_snapshots_and_tables_that_are_not_there",),
    "changes-have-an-end": (f"{_SPARK}test_changes_refused.py::test_snapshots_and_tables_that_are_not_there",),
    "reserved-columns": (f"{_SPARK}test_changes_columns.py::test_reserved_column_names_are_refused",),
    "types-spark-can-read": (
        f"{_SPARK}test_changes_foreign_files.py::test_columns_of_a_type_that_spark_cannot_read_from_a_file",
    ),
    "same-files-by-path": (
        f"{_SPARK}test_changes_refused.py::test_files_that_are_hidden_to_spark_and_files_that_are_listed_twice",
    ),
    "no-equality-deletes": (f"{_SPARK}test_changes_refused.py::test_equality_deletes",),
    "only-parquet": (f"{_SPARK}test_changes_foreign_files.py::test_files_other_than_parquet",),
    "scans-give-columns-of-now": (f"{_SPARK}test_changes_foreign_files.py::test_files_other_than_parquet",),
    "scans-know-no-deletes": (f"{_SPARK}test_changes_foreign_files.py::test_files_other_than_parquet",),
    "files-have-field-ids": (
        f"{_SPARK}test_changes_foreign_files.py::test_added_files_with_rows_that_are_deleted_by_position",
    ),
    "partition-values-of-columns": (
        f"{_SPARK}test_changes_foreign_files.py::test_a_partition_by_a_field_within_a_column",
    ),
    "types-only-widen": (
        f"{_SPARK}test_changes_foreign_files.py::test_a_table_that_was_replaced_by_one_of_another_type",
    ),
    "each-file-once": (
        f"{_SPARK}test_changes_refused.py::test_files_that_are_hidden_to_spark_and_files_that_are_listed_twice",
    ),
    "appends-know-their-chain": _APPENDS,
    "appends-only": _APPENDS,
    "appends-in-unit-tests": (
        f"{_SPARK}test_epoch_unit_example.py::test_a_corrected_purchase_is_taken_back_and_counted_anew",
    ),
    "plans-are-whole": ("tests/reading/test_spark_session.py::test_a_plan_that_is_cut_off_says_not_what_a_view_reads",),
    "temporary-views-are-pinned": (
        "tests/reading/test_spark_session.py::test_a_temporary_view_over_the_topology_is_refused",
    ),
}

KILLERS = {**_WITHOUT_SPARK, **ON_SPARK}
