/** Clears a run, with a preview. */
import { useState } from 'preact/hooks'
import { ByFilter } from '../../parts/ByFilter'
import { t } from '../../strings'

export function ClearRun({ dagId, runId, onlyFailed, onClose, onDone }: { dagId: string; runId: string; onlyFailed: boolean; onClose: () => void; onDone: () => void }) {
  const [failed] = useState(onlyFailed)
  const filter = { dag_ids: [dagId], dag_run_ids: [runId], ...(failed ? { state: ['failed', 'upstream_failed'] } : {}) }
  return <ByFilter wanted={{ kind: 'clear', filters: [filter], title: failed ? t.run.clearFailed : t.run.clear }} onClose={onClose} onDone={onDone} />
}
