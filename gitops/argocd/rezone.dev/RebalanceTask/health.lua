-- How healthy a RebalanceTask is, from its conditions. docs/operate/gitops.md says what each answer means.
-- Argo CD asks only about objects that are not being deleted, and gives Lua's base library alone.
-- RebalanceTask and RegionMigration have the same conditions, and all that follows in common.

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

if obj.status == nil or obj.status.conditions == nil or condition("Succeeded") == nil then
  return health("Progressing", "the operator has not seen it yet")
end

if (obj.status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return health("Progressing", "the operator has not seen the newest spec yet")
end

local succeeded = condition("Succeeded")
if succeeded.status == "True" then
  return health("Healthy", succeeded.message)
end

local stalled = condition("Stalled")
if stalled ~= nil and stalled.status == "True" then
  -- To wait for a person's approval is what the zone asks for; nothing is wrong.
  if stalled.reason == "AwaitingApproval" then
    return health("Suspended", stalled.message)
  end
  return health("Degraded", stalled.message)
end

if succeeded.status == "False" then
  -- Whoever cancelled it has got what the spec says.
  if succeeded.reason == "Cancelled" then
    return health("Healthy", succeeded.message)
  end
  return health("Degraded", succeeded.message)
end

if obj.spec.suspend or succeeded.reason == "Paused" then
  return health("Suspended", succeeded.message)
end

return health("Progressing", succeeded.message)
