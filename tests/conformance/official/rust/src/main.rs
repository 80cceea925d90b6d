//! What an application does with the official Rust client, unmodified: `official-rust-client SCENARIO URL TOPIC`.
//!
//! The Rust client is the one with the worst traps: it waits for the headers of a stream with the lock in hand that
//! `ack` and `close` need, panics at a message without `msg_id`, and gives up for good where the others go on. A
//! scenario ends with `ok` on stdout, or not at all. `say` and `go_on` take turns with the test that started it.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::time::{Duration, Instant};

use danube_client::{Consumer, ConsumerOptions, DanubeClient, Producer, ProducerOptions, SubType};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

type Done<T> = Result<T, Box<dyn Error>>;

/// For what must come; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// With `OFFICIAL_CA` and `OFFICIAL_TOKEN`: over TLS, with a token.
async fn connect(url: &str) -> Done<DanubeClient> {
    let mut builder = DanubeClient::builder().service_url(url);
    if let Ok(ca) = std::env::var("OFFICIAL_CA") {
        builder = builder.with_tls(ca)?.with_token(std::env::var("OFFICIAL_TOKEN")?);
    }
    Ok(builder.build().await?)
}

async fn producer(client: &DanubeClient, topic: &str, reliable: bool, partitions: usize) -> Done<Producer> {
    let mut builder = client
        .new_producer()
        .with_topic(topic)
        .with_name("rust-producer")
        .with_options(ProducerOptions::new(40, 200, 500));
    if reliable {
        builder = builder.with_reliable_dispatch();
    }
    if partitions > 0 {
        builder = builder.with_partitions(partitions);
    }
    let mut made = builder.build()?;
    made.create().await?;
    Ok(made)
}

async fn consumer(client: &DanubeClient, topic: &str, name: &str, kind: SubType, filter: Option<&str>) -> Done<Consumer> {
    let mut builder = client
        .new_consumer()
        .with_topic(topic)
        .with_consumer_name(name)
        .with_subscription("rust-subscription")
        .with_subscription_type(kind)
        .with_options(ConsumerOptions::new(40, 200, 500));
    if let Some(pattern) = filter {
        builder = builder.with_key_filter(pattern);
    }
    let mut made = builder.build()?;
    made.subscribe().await?;
    Ok(made)
}

type Inbox = tokio::sync::mpsc::Receiver<danube_core::message::StreamMessage>;

async fn next(inbox: &mut Inbox) -> Done<danube_core::message::StreamMessage> {
    timeout(PATIENCE, inbox.recv()).await?.ok_or_else(|| "the receive loop has ended".into())
}

async fn take_and_ack(consumer: &mut Consumer, inbox: &mut Inbox, count: usize) -> Done<Vec<String>> {
    let mut payloads = Vec::new();
    for _ in 0..count {
        let message = next(inbox).await?;
        payloads.push(String::from_utf8(message.payload.to_vec())?);
        timeout(PATIENCE, consumer.ack(&message)).await??;
    }
    Ok(payloads)
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("m{number}")).collect()
}

fn say(word: &str) {
    println!("{word}");
}

async fn go_on() -> Done<()> {
    let mut line = String::new();
    if BufReader::new(tokio::io::stdin()).read_line(&mut line).await? == 0 {
        return Err("the test is gone".into());
    }
    Ok(())
}

async fn reliable(url: &str, topic: &str) -> Done<()> {
    let client = connect(url).await?;
    let producer = producer(&client, topic, true, 0).await?;
    let mut consumer = consumer(&client, topic, "rust-consumer", SubType::Exclusive, None).await?;
    let mut inbox = consumer.receive().await?;
    // The stream is idle: without headers at once the client would hold its lock, and this would never return.
    timeout(PATIENCE, consumer.close()).await?;
    let mut consumer = self::consumer(&client, topic, "rust-consumer", SubType::Exclusive, None).await?;
    inbox.close();
    let mut inbox = consumer.receive().await?;
    for payload in numbered(50) {
        let attributes = HashMap::from([("payload".to_string(), payload.clone())]);
        producer.send(payload.into_bytes(), Some(attributes)).await?;
    }
    for (offset, payload) in numbered(50).into_iter().enumerate() {
        let message = next(&mut inbox).await?;
        assert_eq!(message.payload, payload.as_bytes());
        assert_eq!(message.attributes["payload"], payload);
        assert_eq!(message.msg_id.topic_offset, offset as u64);
        assert_eq!(message.msg_id.topic_name, topic);
        assert_eq!(message.producer_name, "rust-producer");
        timeout(PATIENCE, consumer.ack(&message)).await??;
    }
    timeout(PATIENCE, consumer.close()).await?;
    Ok(())
}

async fn non_reliable(url: &str, topic: &str) -> Done<()> {
    let client = connect(url).await?;
    let producer = producer(&client, topic, false, 0).await?;
    let mut consumer = consumer(&client, topic, "rust-consumer", SubType::Shared, None).await?;
    let mut inbox = consumer.receive().await?;
    for payload in numbered(20) {
        producer.send(payload.into_bytes(), None).await?;
    }
    assert_eq!(take_and_ack(&mut consumer, &mut inbox, 20).await?, numbered(20));
    Ok(())
}

async fn partitions(url: &str, topic: &str) -> Done<()> {
    let client = connect(url).await?;
    let producer = producer(&client, topic, true, 3).await?;
    let mut consumer = consumer(&client, topic, "rust-consumer", SubType::Shared, None).await?;
    let mut inbox = consumer.receive().await?;
    for payload in numbered(30) {
        producer.send(payload.into_bytes(), None).await?;
    }
    let mut payloads = take_and_ack(&mut consumer, &mut inbox, 30).await?;
    payloads.sort();
    let mut expected = numbered(30);
    expected.sort();
    assert_eq!(payloads, expected);
    Ok(())
}

async fn nack(url: &str, topic: &str) -> Done<()> {
    let client = connect(url).await?;
    let producer = producer(&client, topic, true, 0).await?;
    let mut consumer = consumer(&client, topic, "rust-consumer", SubType::KeyShared, None).await?;
    let mut inbox = consumer.receive().await?;
    producer.send_with_key(b"a".to_vec(), None, "k").await?;
    let message = next(&mut inbox).await?;
    assert_eq!(message.routing_key.as_deref(), Some("k"));
    let begun = Instant::now();
    consumer.nack(&message, Some(1500), Some("not now".to_string())).await?;
    let again = next(&mut inbox).await?;
    assert_eq!(again.payload, message.payload);
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    consumer.ack(&again).await?;
    Ok(())
}

async fn failover(url: &str, topic: &str) -> Done<()> {
    let (client, other) = (connect(url).await?, connect(url).await?);
    let producer = producer(&client, topic, true, 0).await?;
    let mut active = consumer(&client, topic, "active", SubType::FailOver, None).await?;
    let mut active_inbox = active.receive().await?;
    let mut standby = consumer(&other, topic, "standby", SubType::FailOver, None).await?;
    let mut standby_inbox = standby.receive().await?;
    for payload in numbered(6) {
        producer.send(payload.into_bytes(), None).await?;
    }
    assert_eq!(take_and_ack(&mut active, &mut active_inbox, 4).await?, numbered(4));
    timeout(PATIENCE, active.close()).await?;
    drop(active_inbox);
    assert_eq!(take_and_ack(&mut standby, &mut standby_inbox, 2).await?, numbered(6)[4..]);
    producer.send(b"new".to_vec(), None).await?;
    assert_eq!(take_and_ack(&mut standby, &mut standby_inbox, 1).await?, ["new"]);
    Ok(())
}

async fn key_filters(url: &str, topic: &str) -> Done<()> {
    let client = connect(url).await?;
    let producer = producer(&client, topic, true, 0).await?;
    let mut eu = consumer(&client, topic, "eu", SubType::KeyShared, Some("eu-*")).await?;
    let mut us = consumer(&client, topic, "us", SubType::KeyShared, Some("us-*")).await?;
    for number in 0..5 {
        for key in ["eu-1", "us-1"] {
            producer.send_with_key(format!("{key}:{number}").into_bytes(), None, key).await?;
        }
    }
    let (mut eu_inbox, mut us_inbox) = (eu.receive().await?, us.receive().await?);
    let expected = |key: &str| (0..5).map(|number| format!("{key}:{number}")).collect::<Vec<_>>();
    assert_eq!(take_and_ack(&mut eu, &mut eu_inbox, 5).await?, expected("eu-1"));
    assert_eq!(take_and_ack(&mut us, &mut us_inbox, 5).await?, expected("us-1"));
    Ok(())
}

async fn mistakes(url: &str, topic: &str) -> Done<()> {
    let client = connect(url).await?;
    let producer = producer(&client, topic, true, 0).await?;
    let refused = timeout(PATIENCE, producer.send(vec![0; 4_000_001], None)).await?;
    let status = refused.err().ok_or("an oversize message was taken")?;
    assert!(status.to_string().contains("MESSAGE_TOO_LARGE"), "{status}");
    producer.send(b"and it goes on".to_vec(), None).await?;
    assert!(self::producer(&client, topic, false, 0).await.is_err());
    assert!(consumer(&client, "/default/nowhere", "rust-consumer", SubType::Shared, None).await.is_err());
    Ok(())
}

/// The broker is killed and comes back on its data; client, producer and consumer stay the same.
///
/// When the connection breaks, the crate's receive loop asks again at once. If that request still finds the dying
/// connection, hyper answers "operation was canceled", the crate holds Cancelled for final and its loop ends: no broker
/// had a say. An application then subscribes again, and so does this one.
async fn restart(url: &str, topic: &str) -> Done<()> {
    let client = connect(url).await?;
    let producer = producer(&client, topic, true, 0).await?;
    let mut consumer = consumer(&client, topic, "rust-consumer", SubType::Exclusive, None).await?;
    let mut inbox = consumer.receive().await?;
    for payload in numbered(10) {
        producer.send(payload.into_bytes(), None).await?;
    }
    assert_eq!(take_and_ack(&mut consumer, &mut inbox, 6).await?, numbered(6));
    say("kill");
    go_on().await?;
    timeout(PATIENCE, producer.send(b"after".to_vec(), None)).await??;
    let mut seen = HashSet::new();
    while !seen.contains("after") {
        let Some(message) = timeout(PATIENCE, inbox.recv()).await? else {
            consumer.subscribe().await?;
            inbox = consumer.receive().await?;
            continue;
        };
        seen.insert(String::from_utf8(message.payload.to_vec())?);
        timeout(PATIENCE, consumer.ack(&message)).await??;
    }
    // an acknowledgement is durable 100 ms later, so some may come again; none may be missing
    for payload in &numbered(10)[6..] {
        assert!(seen.contains(payload), "{payload} is missing in {seen:?}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Done<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, scenario, url, topic] = arguments.as_slice() else {
        return Err("usage: official-rust-client SCENARIO URL TOPIC".into());
    };
    match scenario.as_str() {
        "reliable" => reliable(url, topic).await?,
        "non_reliable" => non_reliable(url, topic).await?,
        "partitions" => partitions(url, topic).await?,
        "nack" => nack(url, topic).await?,
        "failover" => failover(url, topic).await?,
        "key_filters" => key_filters(url, topic).await?,
        "mistakes" => mistakes(url, topic).await?,
        "restart" => restart(url, topic).await?,
        other => return Err(format!("no scenario {other}").into()),
    }
    say("ok");
    Ok(())
}
