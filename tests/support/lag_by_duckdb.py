"""The figures of both reports by SQL over the telemetry files: DuckDB reads and computes, and nothing of ours is in between.

It follows docs/spark.md and docs/reference.md#diagnosis, not our code. `RAW` is a status without hysteresis.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.duckdb import duckdb_rows

POINTS = 16  # moments of a window


def samples_sql(store: Path, since_ms: int, until_ms: int, *, interval_ms: int, read_from_ms: int) -> str:
    """`s`: samples with lag and how long each is known to hold; `logs`: what is known of a log besides."""
    hold_ms = 15 * interval_ms
    return f"""
    with told as (
      select broker_id, max(epoch_ms(taken_at)) as told
      from read_parquet('{store}/*/telemetry/brokers/*/*.parquet') where epoch_ms(taken_at) < {until_ms} group by 1
    ), raw as (
      select topic_id, subscription_id, topic, subscription, broker_id, incarnation, epoch_ms(taken_at) as t,
             start_offset, next_offset as head, next_offset - unread_offsets as cur, acked_above, in_flight, members,
             redelivered, dead_lettered, dropped, failed, oldest_unread_age_ms as age,
             greatest(0, next_offset - greatest(next_offset - unread_offsets, start_offset) - acked_above) as lag,
             greatest(0, start_offset - (next_offset - unread_offsets)) as lost,
             lead(epoch_ms(taken_at)) over w as nt,
             lag(next_offset - unread_offsets) over w as before_cur
      from read_parquet('{store}/*/telemetry/cursors/*/*.parquet')
      where epoch_ms(taken_at) >= {read_from_ms} and epoch_ms(taken_at) < {until_ms}
      window w as (partition by topic_id, subscription_id order by taken_at)
    ), s as (
      select raw.*,
             case when nt is null then t + greatest(0, least(told - t, {hold_ms}))
                  when nt - t <= {hold_ms} then t + greatest(0, nt - {interval_ms} - t) else t end as until,
             case when nt is null then greatest(0, least(told - t, {hold_ms})) else least(nt - t, {hold_ms}) end as lasts,
             max(case when before_cur is distinct from cur then t end) over p as moved,
             max(case when lag = 0 then t end) over p as read_at,
             min(t) over (partition by topic_id, subscription_id) as first_t
      from raw left join told using (broker_id)
      window p as (partition by topic_id, subscription_id order by t)
    ), told_logs as (
      select *, epoch_ms(taken_at) as t, max(epoch_ms(taken_at)) over () as newest
      from read_parquet('{store}/*/telemetry/topics/*/*.parquet')
      where epoch_ms(taken_at) >= {since_ms - 3_600_000} and epoch_ms(taken_at) < {until_ms}
    ), logs as (
      select topic_id, arg_max(bytes_in / nullif(messages_in, 0), t) as size,
             arg_max(coalesce(retention_age_s, -1), t) as keeps, arg_max(coalesce(drop_unread, false), t) as drops
      from told_logs where t > newest - 3600000 group by 1
    )"""


def windows_by_duckdb(
    store: Path, since_ms: int, until_ms: int, *, window_ms: int, interval_ms: int, stuck_ms: int = 300_000
) -> list[dict[str, Any]]:
    """A row for each window of each subscription: its end, its figures, and its status without hysteresis."""
    step_ms, hold_ms = window_ms // POINTS, 15 * interval_ms
    first_ms = since_ms // window_ms * window_ms + window_ms
    return duckdb_rows(
        samples_sql(store, since_ms, until_ms, interval_ms=interval_ms, read_from_ms=since_ms - 2 * window_ms)
        + f""", subjects as (
      select topic_id, subscription_id, max(until) as known_until, min(t) as first_t from s group by all
    ), ends as (
      select topic_id, subscription_id, e as nominal, e as finish from subjects, range({first_ms}, {until_ms}, {window_ms}) r(e)
      where e >= first_t
      union all
      select topic_id, subscription_id, {until_ms},
             case when known_until < {until_ms} and {until_ms} <= known_until + {hold_ms} then greatest(known_until, {since_ms} + 1) else {until_ms} end
      from subjects
    ), moments as (
      select ends.*, finish - k * {step_ms} as m from ends, range(0, {POINTS}) r(k)
    ), found as (
      select moments.nominal, moments.finish, moments.m, s.* from moments
      asof join s on moments.topic_id = s.topic_id and moments.subscription_id = s.subscription_id and moments.m >= s.t
      where moments.m - s.t <= {hold_ms}
    ), points as (
      select *, least(m, until) as seen, row_number() over q as n, count(*) over g as points,
             lag(cur) over q as point_before
      from found
      window q as (partition by topic_id, subscription_id, nominal order by m),
             g as (partition by topic_id, subscription_id, nominal)
    ), slopes as (
      select a.topic_id, a.subscription_id, a.nominal,
             list_sort(list((b.head - a.head) * 1000.0 / (b.seen - a.seen))) as heads,
             list_sort(list((b.lag - a.lag) * 1000.0 / (b.seen - a.seen))) as lags,
             list_sort(list(((b.cur + b.acked_above) - (a.cur + a.acked_above)) * 1000.0 / (b.seen - a.seen))) as reads
      from points a join points b using (topic_id, subscription_id, nominal)
      where a.seen < b.seen group by all
    ), last as (
      select topic_id, subscription_id, nominal, any_value(finish) as finish, count(*) as points,
             any_value(topic) as topic, any_value(subscription) as subscription,
             arg_max(struct_pack(seen := seen, t := t, head := head, cur := cur, lag := lag, lost := lost, age := age,
                                 in_flight := in_flight, members := members, moved := moved, read_at := read_at), m) as e,
             max(case when point_before <> cur then seen end) as point_moved,
             max(case when lag = 0 then n end) as zero_n, max(m) as newest_m
      from points group by all
    ), unread as (
      select last.*, (select min(seen) from points p where p.topic_id = last.topic_id
                      and p.subscription_id = last.subscription_id and p.nominal = last.nominal
                      and p.n > coalesce(last.zero_n, 0)) as unread_at
      from last
    ), judged as (
      select u.*, case when u.newest_m = u.finish then u.e.seen else u.finish end as now_ms,
             u.points * (u.points - 1) / 2 as pairs, logs.*,
             1.959964 * sqrt(u.points * (u.points - 1) * (2 * u.points + 5) / 18.0) as half,
             slopes.heads, slopes.lags, slopes.reads
      from unread u left join slopes using (topic_id, subscription_id, nominal) left join logs using (topic_id)
    ), figures as (
      select topic, subscription, nominal, finish, now_ms, points, e.head as head, e.cur as cur, e.lag as lag,
             e.lost as lost, e.in_flight as in_flight, e.members as members, size, keeps, drops,
             case when e.lag > 0 and e.age is not null then (now_ms - (e.t - e.age)) / 1000.0 end as age_s,
             case when points >= 5 then list_median(heads) end as produced,
             case when points >= 5 then list_median(lags) end as velocity,
             case when points >= 5 then list_median(reads) end as consumed,
             lags[1 + greatest(0, floor((len(lags) - half) / 2) - 1)::int] as low,
             lags[1 + least(len(lags) - 1, ceil((len(lags) + half) / 2))::int] as high,
             coalesce(point_moved, e.moved) as moved_ms,
             least(unread_at, case when zero_n is null then
                     (select min(t) from s where s.topic_id = judged.topic_id
                      and s.subscription_id = judged.subscription_id and s.t > coalesce(e.read_at, 0)) end,
                   case when e.lost = 0 then e.t - e.age end) as unread_ms,
             now_ms - newest_m as newest_age
      from judged
    ), timed as (
      select *, case when velocity < 0 and high <= 0 and lag > 0 then lag / -velocity end as eta_s,
             case when lag > 0 and drops and keeps >= 0 and age_s is not null then greatest(0, keeps - age_s) end as headroom
      from figures
    )
    select *, case
        when points < 3 or 2 * points < {POINTS} or newest_age > 3 * {step_ms} then 'UNKNOWN'
        when lost > 0 then 'DATA_LOST'
        when lag = 0 or age_s <= 2 * {interval_ms} / 1000.0 then 'CAUGHT_UP'
        when headroom < 2 * {interval_ms} / 1000.0 or (headroom < 0.2 * keeps and not (velocity < 0 and high <= 0)) then 'AT_RISK'
        when now_ms - greatest(moved_ms, unread_ms) >= {stuck_ms} then 'STUCK'
        when velocity is null then 'UNKNOWN'
        when low > 0 then 'FALLING_BEHIND'
        when velocity < 0 and high <= 0 and eta_s > 3600 then 'SLOW'
        when velocity < 0 and high <= 0 then 'CATCHING_UP'
        when members = 0 then 'SLOW'
        when age_s < {stuck_ms} / 1000.0 then 'CATCHING_UP'
        else 'SLOW' end as status
    from timed order by topic, subscription, nominal
    """
    )


def times_by_duckdb(
    store: Path, since_ms: int, until_ms: int, *, window_ms: int, interval_ms: int
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the figures over a whole period: known minutes, rises of counters, lost messages, ages over time."""
    step_ms, hold_ms = window_ms // POINTS, 15 * interval_ms

    def rise(name: str) -> str:
        return (
            f"sum(case when was.t is null then 0 when was.incarnation is distinct from s.incarnation then s.{name} "
            f"else greatest(0, s.{name} - was.{name}) end) as {name}"
        )

    rows = duckdb_rows(
        samples_sql(store, since_ms, until_ms, interval_ms=interval_ms, read_from_ms=since_ms - 2 * window_ms)
        + f""", counted as (
      select s.topic, s.subscription, {rise("redelivered")}, {rise("dead_lettered")}, {rise("dropped")},
             sum(case when was.t is null then s.lost else greatest(0, s.lost - was.lost) end) as newly_lost
      from s asof left join s was
        on s.topic_id = was.topic_id and s.subscription_id = was.subscription_id and s.t > was.t
      where s.t >= {since_ms} group by all
    ), known as (
      select topic, subscription, any_value(first_t) as first_t,
             sum(greatest(0, least(t + lasts, {until_ms}) - greatest(t, {since_ms}))) / 60000.0 as known_minutes
      from s group by all
    ), bounds as (select topic_id, subscription_id, max(until) as known_until from s group by all), moments as (
      select topic_id, subscription_id, {since_ms} + k * {step_ms} as m from bounds, range(1, 1000000) r(k)
      where {since_ms} + k * {step_ms} <=
        case when known_until < {until_ms} and {until_ms} <= known_until + {hold_ms} then greatest(known_until, {since_ms} + 1) else {until_ms} end
    ), ages as (
      select s.topic, s.subscription,
             case when s.lag = 0 then 0 when s.age is not null then (s.age + least(m, s.until) - s.t) / 1000.0 end as age_s
      from moments asof join s
        on moments.topic_id = s.topic_id and moments.subscription_id = s.subscription_id and m >= s.t
      where m - s.t <= {hold_ms}
    ), aged as (
      select topic, subscription, quantile_cont(age_s, 0.5) as p50, quantile_cont(age_s, 0.95) as p95,
             max(age_s) as highest, count(*) as samples
      from ages group by all
    )
    select * from known left join counted using (topic, subscription) left join aged using (topic, subscription)
    """
    )
    return {(row["topic"], row["subscription"]): row for row in rows}


def balance_by_duckdb(store: Path, since_ms: int, until_ms: int, *, bucket_ms: int) -> list[dict[str, Any]]:
    """A row for each stretch of time and broker: its loads a second, and the share of its disk that is used."""

    def rate(name: str) -> str:
        return (
            f"1000.0 * sum(case when b is null then 0 when nb is distinct from ni then {name} "
            f"else greatest(0, {name} - b_{name}) end) / nullif(max(t) - min(t), 0) as {name}"
        )

    names = ("cpu_s", "bytes_in", "bytes_out")
    befores = ", ".join(f"lag({name}) over w as b_{name}" for name in names)
    return duckdb_rows(
        f"""
    with raw as (
      select broker_id, epoch_ms(taken_at) as t, incarnation as ni, cpus, {", ".join(names)},
             network_in_bytes_per_s as cap_in, network_out_bytes_per_s as cap_out,
             disk_free_bytes, disk_total_bytes,
             {since_ms} + (epoch_ms(taken_at) - {since_ms}) // {bucket_ms} * {bucket_ms} as bucket
      from read_parquet('{store}/*/telemetry/brokers/*/*.parquet')
      where epoch_ms(taken_at) >= {since_ms} and epoch_ms(taken_at) < {until_ms}
    ), steps as (
      select *, lag(t) over w as b, lag(ni) over w as nb, {befores}
      from raw window w as (partition by broker_id, bucket order by t)
    )
    select bucket, broker_id, {", ".join(map(rate, names))}, arg_max(cpus, t) as cpus, arg_max(cap_in, t) as cap_in,
           arg_max(cap_out, t) as cap_out, arg_max(1 - disk_free_bytes / disk_total_bytes, t) as disk
    from steps group by bucket, broker_id order by bucket, broker_id
    """
    )
