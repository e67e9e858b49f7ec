-- How healthy a DistributionZone is, from its conditions. docs/operate/gitops.md says what each answer means.
-- Argo CD asks only about objects that are not being deleted, and gives Lua's base library alone.

local function condition(kind)
  for _, each in ipairs(obj.status.conditions) do
    if each.type == kind then
      return each
    end
  end
  return nil
end

local function health(status, message)
  return { status = status, message = message }
end

if obj.status == nil or obj.status.conditions == nil or condition("Ready") == nil then
  return health("Progressing", "the operator has not seen the zone yet")
end

if (obj.status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return health("Progressing", "the operator has not seen the newest spec yet")
end

local stalled = condition("Stalled")
if stalled ~= nil and stalled.status == "True" then
  return health("Degraded", stalled.message)
end

local reconciling = condition("Reconciling")
if reconciling ~= nil and reconciling.status == "True" then
  return health("Progressing", reconciling.message)
end

local ready = condition("Ready")
if ready.status ~= "True" then
  return health("Progressing", ready.message)
end

-- Only a zone that serves can be called suspended: what it lacks is more urgent than what it waits for.
if obj.spec.rebalance ~= nil and obj.spec.rebalance.paused then
  return health("Suspended", "no moves start while spec.rebalance.paused is true")
end

return health("Healthy", ready.message)
