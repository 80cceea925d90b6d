#!/bin/bash
# Record the transcripts of docs/delivery.md: a consumer is killed, and what the others then receive.
# Every line that begins with a dollar sign can be typed in a clone, beside a broker of `make run`.
#
#     tools/record_delivery.sh [PORT-OFFSET]      (needs jq; prints the transcript)
#
# Victims consume with --ack none, so that all they were sent is unacknowledged when they die.
set -eu
offset=${1:-300}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
cd "$work"
danube() { "$root/danube" "$@"; }
export DANUBE_BROKER_URL=http://127.0.0.1:$((6650 + offset)) DANUBE_ADMIN_ENDPOINT=http://127.0.0.1:$((50051 + offset))
"$root/danube" broker --memory --port-offset "$offset" --ready-file ready.json >broker.out 2>&1 &
broker=$!
clean_up() {
    jobs -p | xargs -r kill 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
until [ -s ready.json ]; do sleep 0.1; kill -0 $broker; done

say() { echo "\$ $*"; }
until_lines() { # FILE COUNT
    for _ in $(seq 1200); do
        [ "$(wc -l <"$1" 2>/dev/null || echo 0)" -ge "$2" ] && return
        sleep 0.1
    done
    echo "no $2 lines in $1" >&2
    exit 1
}
shown='[.offset, .key, .payload, .delivery_count]'
show() { # FILE
    say "jq -c '$shown' $1.json"
    jq -c "$shown" "$1.json"
}
create() { # TOPIC: a consumer does not make a topic
    say "./danube topics create $1 --json | jq -c '{topic}'"
    danube topics create "$1" --json | jq -c '{topic}'
}
attached() { # TOPIC COUNT: until so many consumers are there, as whoever types this sees for himself
    say "./danube subscriptions list --topic $1 --json | jq '.items[0].consumers'"
    for _ in $(seq 600); do
        n=$(danube subscriptions list --topic "$1" --json | jq '[.items[].consumers] | add // 0')
        [ "$n" -ge "$2" ] && echo "$n" && return
        sleep 0.1
    done
    exit 1
}
consume() { # NAME WORDS: in the background; its pid is in the variable NAME
    local name=$1
    shift
    say "./danube consume $* --consumer $name --json > $name.json & $name=\$!"
    : >"$name.json"
    "$root/danube" consume "$@" --consumer "$name" --json >"$name.json" 2>"$name.err" &
    eval "$name=\$!"
}
fill() { # TOPIC TEXTS
    local topic=$1
    shift
    say "printf '%s\\n' $* | ./danube produce $topic --rate 20 --json | jq -c '{acknowledged}'"
    printf '%s\n' "$@" | danube produce "$topic" --rate 20 --json | jq -c '{acknowledged}'
}
kill_it() {
    say "kill -9 \$$1"
    eval "kill -9 \$$1"
    eval "wait \$$1" 2>/dev/null || true
}

echo "## Failover"
fill fo zero one two
consume a2 fo -s s --sub-type failover --ack none
until_lines a2.json 3
consume b2 fo -s s --sub-type failover
attached fo 2
show a2
show b2
kill_it a2
until_lines b2.json 3
fill fo three four
until_lines b2.json 5
show b2
say "kill \$b2"
kill $b2

echo "## Key-shared"
create ks
consume a4 ks -s s --sub-type key-shared --ack none
consume b4 ks -s s --sub-type key-shared
attached ks 2
for text in red:1 blue:1 green:1 red:2 blue:2 green:2; do
    say "./danube produce ks --key ${text%:*} -m ${text#*:}"
    danube produce ks --key "${text%:*}" -m "${text#*:}" >/dev/null
done
for _ in $(seq 600); do [ "$(cat a4.json b4.json | wc -l)" -ge 6 ] && break; sleep 0.1; done
show a4
show b4
kill_it a4
until_lines b4.json 6
say "./danube produce ks --key red -m 3"
danube produce ks --key red -m 3 >/dev/null
until_lines b4.json 7
show b4
say "./danube subscriptions lag --topic ks --json | jq -c '.items[0] | {lag_messages, in_flight, redelivered}'"
for _ in $(seq 100); do
    danube subscriptions lag --topic ks --json | jq -e '.items[0].lag_messages == 0' >/dev/null && break
done
danube subscriptions lag --topic ks --json | jq -c '.items[0] | {lag_messages, in_flight, redelivered}'
say "kill \$b4"
kill $b4

