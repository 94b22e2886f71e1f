//! The store's conformance suite: every case runs on SQLite and on PostgreSQL,
//! as `sqlite::name` and `postgres::name`. Beside it: what only one of them
//! has, and random operations against a model.
#![cfg(test)]

mod cases;
mod clusters;
mod fixtures;
mod model;
mod opening;
mod pressure;
mod replicas;

/// Runs each case, a function of a fresh [`fixtures::Place`], on both databases.
macro_rules! suite {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::$module::$name(crate::fixtures::Place::sqlite()).await;
                }
            )+
        }

        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::$module::$name(crate::fixtures::Place::postgres().await).await;
                }
            )+
        }
    };
}

suite! {
    cases::the_first_workspace_is_created_once,
    cases::workspace_names_are_unique_and_kept_as_they_are,
    cases::tokens_are_found_listed_and_revoked_within_their_scope,
    cases::what_is_exposed_is_found_by_its_slug,
    cases::a_containers_token_lives_as_long_as_the_container,
    cases::an_enrolment_token_is_used_once,
    cases::a_worker_keeps_its_scope_and_binds_once,
    cases::a_repeated_submission_changes_nothing,
    cases::answers_are_remembered_and_forgotten,
    cases::a_request_repeated_at_once_has_one_effect,
    cases::a_refusal_is_not_remembered,
    cases::a_task_is_stored_whole,
    cases::lists_are_scoped_filtered_and_paged,
    cases::numbers_beyond_the_database_are_refused,
    cases::text_of_any_script_is_kept,
    cases::tasks_left_by_their_callers_are_found,
    cases::a_task_that_is_asked_to_end_is_found_while_a_worker_has_it,
    clusters::a_cluster_is_attached_once_and_within_the_quota,
    clusters::a_cluster_is_kept_whole_and_forgotten_with_its_tokens,
    clusters::an_agents_token_is_rotated_without_a_gap,
    clusters::a_node_has_one_worker_on_its_way,
    moves::a_task_runs_and_completes,
    moves::placing_is_refused_unless_all_is_right,
    moves::of_many_at_once_only_one_counts,
    moves::a_lease_that_changed_hands_places_nothing,
    moves::a_lost_attempt_is_retried_and_its_late_result_rejected,
    moves::a_worker_that_returns_gets_its_attempt_back,
    moves::a_waiting_task_is_cancelled_at_once,
    moves::a_running_task_is_cancelled_when_its_worker_says_so,
    moves::an_unreachable_task_is_cancelled_at_once,
    moves::a_final_status_never_changes,
    moves::an_attempt_ends_with_a_final_state_only,
    moves::a_lease_has_one_holder_and_its_epoch_grows,
    logs::segments_follow_one_another,
    logs::a_new_attempts_lines_never_overlap,
    logs::retention_deletes_the_oldest_and_then_the_task,
    pressure::cancelled_callers_leave_no_open_transaction,
    pressure::many_callers_share_a_small_pool,
    pressure::a_closed_store_says_so,
    replicas::controlplanes_know_of_each_other_while_they_say_so,
    opening::migrating_again_changes_nothing,
    opening::an_older_database_is_brought_up_to_date,
    opening::a_database_of_a_newer_build_is_refused,
}

mod logs;
mod moves;
