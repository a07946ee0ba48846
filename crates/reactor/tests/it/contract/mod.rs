//! What every driver must do, written once: `contract_real.rs` runs it on the kernel, `contract_sim.rs` in the
//! simulation. A check is an async function over a [`Place`], run on core 0 of a server with two cores.

pub mod files;
pub mod streams;
pub mod sync;
pub mod tasks;

use pumice_reactor::{Addr, LocalBoxFuture};
use std::path::PathBuf;
use std::time::Duration;

/// The longest that a check waits for what must happen: a machine that does much else is waited for, a hang is not.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Where a check may work.
#[derive(Clone, Debug)]
pub struct Place {
    /// For files and Unix sockets.
    pub dir: PathBuf,
    /// TCP on this machine, port 0.
    pub any_port: Addr,
    /// TCP on this machine, port 0, at an address of this check alone: a port that it lets go of is taken by nobody else.
    pub own_address: Addr,
    /// How many connections and tasks a check with many of them should make.
    pub many: usize,
}

/// One check.
pub type Check = fn(Place) -> LocalBoxFuture<'static, ()>;

macro_rules! each_check {
    ($run:ident: $($module:ident :: $name:ident),* $(,)?) => {
        $(#[test] fn $name() { $run(stringify!($name), |place| Box::pin(crate::contract::$module::$name(place))); })*
    };
}

/// Makes a test of each check, carried out by `run(name, check)`.
macro_rules! contract_tests {
    ($run:ident) => {
        each_check! { $run:
            tasks::many_tasks_all_run,
            tasks::a_yield_lets_every_ready_task_go_first,
            tasks::an_aborted_task_is_dropped_at_once,
            tasks::a_task_may_abort_itself,
            tasks::a_dropped_handle_lets_the_task_run_on,
            tasks::timers_fire_in_order_and_never_early,
            tasks::a_timeout_drops_what_it_waited_for,
            tasks::tasks_spawned_on_another_core_run_there,
            tasks::wakes_cross_cores_many_times,
            tasks::the_wall_clock_goes_on,
            sync::a_gate_opens_for_those_it_reached_and_fails_the_rest,
            sync::a_gate_wakes_thousands_from_another_core,
            sync::a_gate_forgets_who_gave_up_and_wakes_the_others,
            sync::a_dropped_waiter_passes_its_notification_on,
            sync::permits_go_out_in_order_and_come_back,
            sync::a_oneshot_tells_of_a_sender_that_went_away,
            files::reads_give_what_writes_took_and_stop_at_the_end,
            files::many_operations_run_side_by_side,
            files::who_does_not_fetch_what_was_read_holds_nobody_up,
            files::holes_read_as_zeros,
            files::lengths_are_set_and_reserved,
            files::errors_name_their_kind,
            files::a_second_locker_is_refused_until_the_first_is_gone,
            files::operations_dropped_in_flight_harm_nothing,
            files::a_file_is_used_from_another_core,
            files::unaligned_direct_writes_are_refused,
            files::what_has_no_zones_refuses_zone_commands_and_goes_on,
            streams::echo_over_tcp,
            streams::echo_over_a_unix_socket,
            streams::many_connections_at_once,
            streams::large_transfers_arrive_whole_both_ways,
            streams::a_peer_that_does_not_read_stops_its_sender_only,
            streams::half_closed_streams_still_receive,
            streams::unread_input_of_many_starves_nobody,
            streams::streams_dropped_while_receiving_close,
            streams::a_receive_dropped_before_the_kernel_has_it_ends_at_once,
            streams::a_send_to_a_closed_peer_fails,
            streams::an_unawaited_send_wakes_nobody_unless_it_fails,
            streams::nobody_listening_is_refused,
            streams::a_dropped_listener_frees_its_address,
            streams::held_receive_buffers_do_not_block_others,
            streams::streams_that_bring_much_take_turns_with_receive_buffers,
            streams::long_and_short_messages_in_turns_arrive_whole,
            streams::given_memory_and_shared_buffers_by_turns_take_a_stream_in_order,
            streams::a_receive_into_given_memory_that_is_dropped_loses_nothing,
            streams::a_receive_that_finds_no_buffer_as_it_is_cancelled_has_not_failed,
            streams::sends_cancelled_in_flight_harm_nothing,
        }
    };
}
