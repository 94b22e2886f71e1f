//! What the clouds and NVIDIA's own node labels call a card, and what levers9
//! calls it. Agents ask for the name of a label, the CLI and the controlplane
//! whether a name and a label can be the same card. Counts never come from
//! here: labels only name.

/// Labels that name a node's cards, the one to believe first.
pub const LABELS: [&str; 4] = [
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
];

/// How a label's value goes on after "nvidia-", "tesla-" and the like are taken
/// off, what must come in it further on, and the name. The first row that fits.
const NAMES: [(&str, &str, &str); 29] = [
    ("rtx-pro-6000", "", "RTXPRO6000"),
    ("rtx-6000-ada", "", "RTX6000ADA"),
    ("rtx-a6000", "", "RTXA6000"),
    ("rtx-5090", "", "RTX5090"),
    ("rtx-4090", "", "RTX4090"),
    ("rtx-3090", "", "RTX3090"),
    ("a100", "80gb", "A100-80"),
    ("a100", "40gb", "A100-40"),
    ("a100", "", "A100"),
    ("a10g", "", "A10G"),
    ("a10", "", "A10"),
    ("a16", "", "A16"),
    ("a2", "", "A2"),
    ("a30", "", "A30"),
    ("a40", "", "A40"),
    ("gb300", "", "GB300"),
    ("gb200", "", "GB200"),
    ("gh200", "", "GH200"),
    ("b300", "", "B300"),
    ("b200", "", "B200"),
    ("h200", "", "H200"),
    ("h100", "", "H100"),
    ("h20", "", "H20"),
    ("l40s", "", "L40S"),
    ("l40", "", "L40"),
    ("l4", "", "L4"),
    ("t4", "", "T4"),
    ("v100", "", "V100"),
    ("p100", "", "P100"),
];

/// The name of a card as a label's value writes it: `NVIDIA-A100-SXM4-80GB` is
/// an `A100-80`. A product nobody knows keeps its own name, in the form of one.
#[must_use]
pub fn name_of(label: &str) -> String {
    let mut rest = label.trim().to_ascii_lowercase().replace([' ', '_'], "-");
    for maker in ["nvidia-", "geforce-", "tesla-", "quadro-"] {
        rest = rest.strip_prefix(maker).map(ToOwned::to_owned).unwrap_or(rest);
    }
    let rest = rest.strip_suffix("-shared").unwrap_or(&rest);
    let whole = |head: &str| {
        rest.strip_prefix(head).is_some_and(|tail| !tail.starts_with(|c: char| c.is_ascii_alphanumeric()))
    };
    let known = NAMES.iter().find(|(head, further, _)| whole(head) && rest.contains(further));
    match known {
        Some((_, _, name)) => (*name).to_owned(),
        None => {
            let plain = rest.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-');
            plain.take(32).collect::<String>().to_ascii_uppercase()
        }
    }
}

/// Whether a card that is called `label` can be what somebody calls `wanted`.
/// A name without a size fits every size: `A100` is an `A100-80`.
#[must_use]
pub fn fits(wanted: &str, label: &str) -> bool {
    let plain = |name: &str| name.replace('-', "").to_ascii_uppercase();
    let sized = |short: &str, long: &str| {
        long.len() > short.len() && long.starts_with(short) && long.as_bytes()[short.len()] == b'-'
    };
    plain(wanted) == plain(label) || sized(wanted, label) || sized(label, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clouds_names_are_ours() {
        for (label, name) in [
            ("NVIDIA-A100-SXM4-80GB", "A100-80"),
            ("NVIDIA-A100-SXM4-40GB", "A100-40"),
            ("nvidia-tesla-a100", "A100"),
            ("nvidia-a100-80gb", "A100-80"),
            ("NVIDIA-H100-80GB-HBM3", "H100"),
            ("nvidia-h100-mega-80gb", "H100"),
            ("nvidia-h200-141gb", "H200"),
            ("Tesla-T4", "T4"),
            ("nvidia-tesla-t4", "T4"),
            ("Tesla-V100-SXM2-16GB", "V100"),
            ("NVIDIA-L40S", "L40S"),
            ("NVIDIA-L40", "L40"),
            ("nvidia-l4", "L4"),
            ("NVIDIA-A10G-SHARED", "A10G"),
            ("a10g", "A10G"),
            ("NVIDIA-GeForce-RTX-4090", "RTX4090"),
            ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTXPRO6000"),
            ("nvidia-rtx-pro-6000", "RTXPRO6000"),
            ("NVIDIA-GB200", "GB200"),
            ("", ""),
            ("Some New_Card!", "SOME-NEW-CARD"),
        ] {
            assert_eq!(name_of(label), name, "{label}");
        }
    }

    #[test]
    fn a_size_that_was_not_said_contradicts_nothing() {
        assert!(fits("A100", "A100-80") && fits("A100-80", "A100") && fits("RTX-PRO-6000", "RTXPRO6000"));
        assert!(!fits("A100-40", "A100-80") && !fits("A10", "A100") && !fits("T4", "L4"));
    }
}
