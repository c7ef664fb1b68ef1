/** The way back to a version of a bundle: a dialog shows the plan of the rollback before it is done. */
import { api, ok } from '../api/client'
import { useLive } from '../live/resource'
import { Button, Note, Skeleton } from '../parts/basic'
import { attempt, Dialog, toast } from '../parts/overlay'
import { account, may } from '../shell/session'
import { t } from '../strings'
import { PlanShown } from './planParts'

const s = t.bundles

/** Whether the account may deploy to a bundle. Its code reads every secret, so the role operator is not enough: docs/adr/0057. */
export const mayDeploy = (bundle: string) => may('admin', [`bundle:${bundle}`]) || account.value?.tags[`bundle:${bundle}`] === 'operator'

export function RollBack({ bundle, version, onClose, onDone }: { bundle: string; version: number; onClose: () => void; onDone: () => unknown }) {
  const path = { bundle_name: bundle }
  const live = useLive(`plan ${bundle} ${version} undefined`, () => ok(api.GET('/api/v2/bundles/{bundle_name}/plan', { params: { path, query: { version_number: version } } })), { every: 0, fresh: 2_000 })
  const back = async () => {
    if (!(await attempt(() => ok(api.POST('/api/v2/bundles/{bundle_name}/rollback', { params: { path }, body: { version_number: version } }))))) return
    toast(s.backDone(version))
    onClose()
    await onDone()
  }
  return (
    <Dialog
      title={s.backTitle(version)}
      wide
      onClose={onClose}
      onSubmit={() => void back()}
      footer={
        <>
          <Button onClick={onClose}>{t.cancel}</Button>
          <Button kind="bad" type="submit">{s.back}</Button>
        </>
      }
    >
      <p>{s.backText}</p>
      {live.error.value ? <Note kind="warn">{live.error.value}</Note> : live.data.value ? <PlanShown plan={live.data.value} /> : <Skeleton rows={3} />}
    </Dialog>
  )
}
