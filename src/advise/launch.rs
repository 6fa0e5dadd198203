//! What to type: flags and configuration files of each tier, ready to be copied.

use serde::Serialize;
use serde_json::json;

use super::lmcache::Disk;
use super::words::gib;

/// Something to copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    /// What it is, and where it goes.
    pub what: String,
    /// The text itself.
    pub text: String,
}

impl Block {
    fn new(what: impl Into<String>, text: impl Into<String>) -> Block {
        Block { what: what.into(), text: text.into() }
    }
}

/// vLLM's own RAM tier. Its flag counts GiB per engine, all ranks together.
pub fn ram(bytes: u64) -> Block {
    let gib = gib(bytes as f64);
    Block::new("flags of vllm serve", format!("--kv-offloading-size {gib} --kv-offloading-backend native"))
}

/// A disk tier of LMCache in the engine's processes.
pub fn lmcache(disk: &Disk) -> [Block; 2] {
    let connector = json!({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"});
    [
        Block::new("file /etc/vllm/lmcache.yaml", disk.yaml()),
        Block::new(
            "environment and flags of vllm serve, with LMCache 0.5 installed beside it",
            format!(
                "export PROMETHEUS_MULTIPROC_DIR=/run/vllm-metrics  # empty, on a local disk; else vLLM's page lacks LMCache's metrics\n\
                 export LMCACHE_CONFIG_FILE=/etc/vllm/lmcache.yaml\n\
                 vllm serve MODEL --kv-transfer-config '{connector}'"
            ),
        ),
    ]
}

/// vLLM's own file tier behind its RAM tier, from 0.28 on.
pub fn fs(path: &str, cpu_bytes: u64) -> Block {
    let config = json!({
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": cpu_bytes,
            "secondary_tiers": [{"type": "fs", "root_dir": path}],
        },
    });
    // A quote in the path must not end the shell's.
    let quoted = config.to_string().replace('\'', r"'\''");
    Block::new(
        "or, from vLLM 0.28 on, its own fs tier instead of LMCache; it has no size limit and removes nothing, so watch the disk",
        format!("vllm serve MODEL --kv-transfer-config '{quoted}'"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_size_is_in_gib_whole_or_not() {
        assert_eq!(ram(34_359_738_368).text, "--kv-offloading-size 32 --kv-offloading-backend native");
        assert!(ram(1_610_612_736).text.starts_with("--kv-offloading-size 1.5 "));
        assert!(ram(25_125_558_681).text.starts_with("--kv-offloading-size 23.4 "));
    }

    #[test]
    fn the_json_is_json_with_any_path() {
        let text = fs("/kv/it's \"here\"", 1024).text;
        let quoted = text.split_once("--kv-transfer-config '").unwrap().1.strip_suffix('\'').unwrap();
        let config: Value = serde_json::from_str(&quoted.replace(r"'\''", "'")).unwrap();
        let extra = &config["kv_connector_extra_config"];
        assert_eq!(extra["secondary_tiers"][0]["root_dir"], "/kv/it's \"here\"");
        assert_eq!((&extra["spec_name"], &extra["cpu_bytes_to_use"]), (&json!("TieringOffloadingSpec"), &json!(1024)));
    }
}
