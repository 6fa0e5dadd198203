//! Two alerts on their whole way: the driver tells of little memory, or a page is of no known engine; the program exports
//! it, a real Prometheus evaluates the shipped rules, and a real Alertmanager with the shipped routes rings a webhook.
//!
//! The files are the shipped ones but for their addresses. So are the times in them: the first alert looks at the least of
//! ten minutes and keeps firing for ten more, the second waits for a quarter of an hour, so the test waits for more than
//! twenty minutes of nothing at all. Both wait together.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A helper that panics is a failed test.
#![allow(unreachable_pub)] // Nothing outside a test crate can reach anything in it.

#[path = "../support/nvml.rs"]
mod nvml;
#[path = "../support/program/mod.rs"]
#[allow(dead_code, reason = "its scripted upstream can do more than is needed here")]
mod program;
mod receiver;
mod servers;

use std::time::{Duration, Instant};

use nvml::Stub;
use program::exporter::{Exporter, command};
use program::upstream::{Upstream, ok};
use receiver::{Notice, Receiver};
use servers::Servers;

/// A card with so many bytes free.
fn card(free: u64) -> String {
    let (total, reserved) = (34_190_917_632_u64, 978_321_408_u64);
    let used = total - free - reserved;
    format!(
        "driver 580.95.05\ncount 1\ngpu0.uuid GPU-aaaa\ngpu0.name NVIDIA GeForce RTX 5090\n\
         gpu0.memory {total} {used} {free} {reserved}\ngpu0.link 5 5 16 16\n"
    )
}

#[test]
fn low_gpu_headroom_rings_the_pager_and_is_taken_back_and_an_unknown_page_is_told_in_the_chat() {
    let folder = tempfile::tempdir().unwrap();
    // 200 MiB: below the 256 MiB at which it is critical.
    let driver = Stub::build(folder.path(), &[], &card(209_715_200));
    let library = driver.library().to_str().unwrap();
    let flags = ["--collector.gpu", "--nvml.library", library, "--web.listen-address", "127.0.0.1:0", "demo"];
    let exporter = Exporter::spawn(&mut command(&flags));
    // An address of its own: the shipped configuration tells boxes apart by them.
    let upstream = Upstream::start(|_| vec![ok("ray_vllm_num_requests_running{engine=\"0\"} 1\n")]);
    let elsewhere = ["--upstream", &upstream.url(), "--web.listen-address", "127.0.0.2:0"];
    let of_nobody = Exporter::spawn(&mut command(&elsewhere));
    let receiver = Receiver::start();
    let _servers = Servers::start(folder.path(), &[exporter.address, of_nobody.address], receiver.address);

    // One minute of it, then two scrapes, two evaluations and the group's wait.
    let rung = wait(Duration::from_secs(300), || receiver.find("/pager", "KVTierGPUMemoryLow", "firing"));
    assert_eq!(rung.label("severity"), "critical");
    assert_eq!((rung.label("instance"), rung.label("gpu"), rung.label("job")), ("127.0.0.1", "0", "kvtier"));
    assert_eq!(rung.annotation("summary"), "GPU memory headroom is low.");
    let description = rung.annotation("description");
    assert!(description.contains("GPU 0 of 127.0.0.1") && description.contains("200MiB"), "{description}");
    assert!(
        rung.annotation("runbook_url").ends_with("runbook.md#kvtiergpumemorylow"),
        "{}",
        rung.annotation("runbook_url")
    );
    assert!(rung.annotation("dashboard_url").ends_with("/d/kvtier-overview?var-instance=127.0.0.1"));
    // The worst severity only: the warning of the same card says nothing more.
    assert!(receiver.find("/chat", "KVTierGPUMemoryLow", "firing").is_none());
    wait(Duration::from_secs(120), || receiver.find("/dead-man", "KVTierWatchdog", "firing"));

    driver.script(&card(21_474_836_480));
    // Ten minutes until the low is no longer the least, ten that it keeps firing, five until the group is told again.
    let taken_back = wait(Duration::from_secs(30 * 60), || receiver.find("/pager", "KVTierGPUMemoryLow", "resolved"));
    assert_eq!(taken_back.label("gpu"), "0");
    an_unknown_page_was_told(&of_nobody, &receiver);
}

/// After more than a quarter of an hour: once in the log, however often it was scraped, and in the chat.
fn an_unknown_page_was_told(exporter: &Exporter, receiver: &Receiver) {
    let told = wait(Duration::from_secs(120), || receiver.find("/chat", "KVTierPageUnknown", "firing"));
    assert_eq!((told.label("severity"), told.label("instance")), ("warning", "127.0.0.2"));
    assert!(told.annotation("runbook_url").ends_with("runbook.md#kvtierpageunknown"));
    let metrics = exporter.metrics().body;
    assert!(
        metrics.contains("kvtier_notice_active{id=\"upstream-unknown-engine\",upstream=\"main\"} 1\n"),
        "{metrics}"
    );
    let lines = exporter.log().into_iter().filter(|line| line.contains("notice=upstream-unknown-engine"));
    let lines: Vec<String> = lines.collect();
    assert!(lines.len() == 1 && lines[0].contains("ray_vllm_"), "{lines:?}");
}

fn wait(patience: Duration, mut found: impl FnMut() -> Option<Notice>) -> Notice {
    let end = Instant::now() + patience;
    loop {
        if let Some(notice) = found() {
            return notice;
        }
        assert!(Instant::now() < end, "no such notice within {patience:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
