#!/bin/bash
# The cluster's network plugin, on one node: a pod network of its own for this node, and a route to
# every other node's. All nodes are on one bridge, so no tunnel is needed.
# Takes NODE, POD_SUBNET, SERVER and TOKEN_FILE from the environment; ends when the watch ends.
set -u
config=/etc/cni/net.d/10-rezone.conflist

masquerade=(POSTROUTING -s "$POD_SUBNET" ! -d "$POD_SUBNET" -m addrtype ! --dst-type LOCAL
  -o eth0 -j MASQUERADE)
iptables -t nat -C "${masquerade[@]}" 2>/dev/null || iptables -t nat -A "${masquerade[@]}"

give_this_node() {
  [ -f "$config" ] && grep -q "$1" "$config" && return
  cat > "$config.new" <<EOF
{
  "cniVersion": "0.3.1",
  "name": "rezone",
  "plugins": [
    {
      "type": "ptp",
      "mtu": 1500,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": "$1"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
EOF
  mv "$config.new" "$config"
}

kubectl --server="$SERVER" --certificate-authority=/etc/kubernetes/pki/ca.crt \
  --token="$(cat "$TOKEN_FILE")" --kubeconfig=/dev/null get nodes --watch --no-headers \
  --output-watch-events --output=custom-columns='NAME:.metadata.name,PODS:.spec.podCIDR,ADDRESS:.status.addresses[?(@.type=="InternalIP")].address' |
  while read -r event name pods address; do
    case "$pods $address" in *'<none>'*) continue ;; esac
    if [ "$name" = "$NODE" ]; then
      give_this_node "$pods"
    elif [ "$event" = DELETED ]; then
      ip route del "$pods" 2>/dev/null
    else
      ip route replace "$pods" via "$address"
    fi
  done
