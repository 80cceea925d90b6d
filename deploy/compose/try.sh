#!/usr/bin/env bash
# Publish, kill the broker in the middle, and show that nothing that was acknowledged is lost.
#
#   deploy/compose/try.sh [FILE]         FILE: deploy/compose/one.yaml
#
# A broker of one.yaml is started again. Of full.yaml the topic's owner is killed, its volume is emptied, and another broker
# has to serve the topic. COMPOSE="podman-compose" chooses another program than `docker compose`. What it starts it removes again.
set -euo pipefail
file=${1:-$(dirname "$0")/one.yaml}
[ -f "$file" ] || { echo "error: $file is no file: name a compose file" >&2; exit 2; }
compose="${COMPOSE:-docker compose} -p danube-try -f $file"
messages=${MESSAGES:-20000}
[[ $messages =~ ^[1-9][0-9]{0,6}$ ]] || { echo "error: MESSAGES is '$messages': name a number from 1 to 9999999" >&2; exit 2; }
program=${compose%% *}
command -v "$program" >/dev/null || { echo "error: there is no program '$program': set COMPOSE, such as COMPOSE=podman-compose" >&2; exit 2; }
work=$(mktemp -d)
cleanup() {
    $compose down -v >"$work/down.log" 2>&1 || cat "$work/down.log" >&2
    rm -rf "$work"
}
trap cleanup EXIT
service=broker # the one that serves the topic
danube() { $compose exec -T "$service" danube "$@"; }
wait_for() { # a sentence for the error, and a command
    local until=$((SECONDS + ${WAIT_S:-120}))
    while [ "$SECONDS" -lt "$until" ]; do
        if "${@:2}" >/dev/null 2>&1; then return; fi
        sleep 0.5
    done
    echo "error: $1 within ${WAIT_S:-120} s" >&2
    $compose logs "$service" 2>&1 | tail -20 >&2
    exit 1
}
not_started() {
    echo "error: the broker did not start; its image ${DANUBE_IMAGE:-localhost/danube:dev} is made by deploy/image/build.sh" >&2
    exit 1
}
field() { tr ',' '\n' | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | head -n 1; }
# Sets `service` to the service of the topic's owner, if it is one of those that are named.
owned_by() {
    local each owner
    for each in "$@"; do
        owner=$($compose exec -T "$each" danube topics describe try --json 2>/dev/null | field owner)
        if [ -n "$owner" ] && [ "$owner" = "$($compose exec -T "$each" danube brokers status --json | field broker_id)" ]; then
            service=$each
            return
        fi
    done
    return 1
}

brokers=$($compose config --services | grep -E '^broker(-[0-9]+)?$' | sort)
# shellcheck disable=SC2086 # one word for each service
$compose up -d $brokers || not_started
for service in $brokers; do wait_for "$service was not ready" danube brokers status; done
service=broker
danube topics create try --timeout 60s >/dev/null
# shellcheck disable=SC2086
wait_for "no broker serves the topic" owned_by $brokers
# shellcheck disable=SC2086
owned_by $brokers
echo "ready; publishing $messages messages, killing $service half-way"
seq "$messages" >"$work/sent"
half=$((messages / 2))
head -n $half "$work/sent" | danube produce try --json >"$work/first.json"
# The second half goes on while the container is killed, its producer with it: of what it sent, the beginning must be there.
(tail -n +$((half + 1)) "$work/sent" | danube produce try --rate 500 --timeout 5s >/dev/null 2>&1 || true) &
danube consume try --from "offset:$half" --count 1 --for 60s >/dev/null # it has begun
$compose kill -s KILL "$service" >/dev/null 2>&1
wait
others=$(grep -vx "$service" <<<"$brokers" || true)
if [ -n "$others" ]; then
    $compose run --rm --no-deps --entrypoint sh "$service" -c 'rm -rf /var/lib/danube/*' >/dev/null 2>&1
    echo "$service is killed and its volume empty; waiting for another broker"
    # shellcheck disable=SC2086
    wait_for "no other broker serves the topic" owned_by $others
    # shellcheck disable=SC2086
    owned_by $others
else
    $compose start "$service" >/dev/null 2>&1 || $compose up -d "$service" || not_started
    wait_for "the broker was not ready" danube brokers status
fi
danube consume try --exit --format raw >"$work/read"
read_lines=$(wc -l <"$work/read")
head -n "$half" "$work/read" | cmp - <(head -n $half "$work/sent") || { echo "LOST: the first $half acknowledged messages are not all there" >&2; exit 5; }
cmp <(head -n "$read_lines" "$work/sent") "$work/read" || { echo "LOST: what was read has a gap" >&2; exit 5; }
echo "$half messages were acknowledged before the kill, $read_lines are there after it at $service, in order and without a gap: nothing lost"
