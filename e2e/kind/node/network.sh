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

line='{.type} {.object.metadata.name} {.object.spec.podCIDR}'
line+=' {.object.status.addresses[?(@.type=="InternalIP")].address}{"\n"}'
kubectl --server="$SERVER" --certificate-authority=/etc/kubernetes/pki/ca.crt \
  --token="$(cat "$TOKEN_FILE")" --kubeconfig=/dev/null get nodes --watch --output-watch-events \
  --output=jsonpath="$line" |
  while read -r event name pods address; do
    # A node that has just joined has no pod network yet: then the address is in its place.
    [ -n "$address" ] || continue
    if [ "$name" = "$NODE" ]; then
      give_this_node "$pods"
    elif [ "$event" = DELETED ]; then
      ip route del "$pods" 2>/dev/null
    else
      ip route replace "$pods" via "$address"
    fi
  done
