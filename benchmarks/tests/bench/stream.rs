//! Tests of `sws-bench stream`, with a script in place of `sws`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

/// A model of 100 experts. A budget of N MiB holds N - 10 of them.
const PROGRAM: &str = r#"#!/bin/sh
for word in "$@"; do
    case $before in --ram) ram=${word%MiB};; --policy) policy=$word;; esac
    before=$word
done
case $1 in
inspect) echo '{"kinds":[{"kind":"experts","stored_bytes":104857600},{"kind":"embedding","stored_bytes":7}]}';;
plan)
    slots=$((ram - 10)); [ $slots -gt 100 ] && slots=100
    echo '{"smallest_budget":20971520,"plan":{"slots":'$slots',"pinned_bytes":0,"ring_bytes":0}}';;
run)
    tokens='[1,2,3]'; [ "$policy" = "$WRONG" ] && tokens='[1,2,4]'
    part='{"tokens":2,"seconds":4.0,"disk":{"bytes":60,"busy":0.5},"stalls":{"seconds":1.0},"time":{"other":0.5},"experts":{"hit_rate":0.75}}'
    echo '{"tokens":'$tokens',"metrics":{"weight_bytes":5,"cost":{"prompt":'$part',"generation":'$part'}}}';;
esac
"#;

#[test]
fn every_budget_and_policy_gets_a_row_and_must_give_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (program, json) = (dir.path().join("sws"), dir.path().join("out.json"));
    fs::write(&program, PROGRAM).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let bench = |wrong: &str| {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_sws-bench"));
        bench.args(["stream", "model", "--resident", "--shares", "100,50", "--rounds", "2"]);
        bench.arg("--sws").arg(&program).arg("--json").arg(&json).env("WRONG", wrong);
        bench.output().unwrap()
    };

    let output = bench("none");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    // One MiB is added, as the floor of a process differs from one start to the next.
    let budget = |mib: u64| Value::from((mib + 1) << 20);
    let expected = [
        (Value::Null, "", Value::Null),
        (100.0.into(), "", budget(110)),
        (50.0.into(), "expected", budget(60)),
        (50.0.into(), "lru", budget(60)),
    ];
    assert_eq!(rows.as_array().unwrap().len(), expected.len());
    for (row, (share, policy, budget)) in rows.as_array().unwrap().iter().zip(expected) {
        assert_eq!(
            (&row["share"], &row["policy"], &row["budget"]),
            (&share, &policy.into(), &budget)
        );
        assert_eq!(row["runs"].as_array().unwrap().len(), 2);
        let run = &row["runs"][1];
        let measured =
            ["seconds_per_token", "bytes_per_token", "hit_rate", "waiting", "other", "reading"];
        let expected = [2.0, 30.0, 0.75, 0.25, 0.125, 0.5];
        assert_eq!(measured.map(|key| run[key].as_f64()), expected.map(Some));
    }

    let output = bench("lru");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("generates other tokens"), "{error}");
}
